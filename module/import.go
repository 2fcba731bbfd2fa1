package module

import (
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// Import is a user's data on a server without the module.
type Import struct {
	// Rules is the content of the user's m.push_rules event as JSON, {"global":{...}};
	// see [pushrule.Import]. Empty means the default rules.
	Rules string

	// Pushers are in order of creation. Device is the device that set a pusher. Without
	// it, only [HostService.KeepOnlyDevicePushers] removes the pusher at a logout, unless
	// its kind is email. Extra contains the other members that clients see; see
	// [pusher.ProfileTag]. SetAt is the time of the last set in microseconds since 1970;
	// 0 means now. Created and Claim are ignored.
	Pushers []pusher.Pusher
}

// ImportMode is store or dry run.
type ImportMode string

// The modes.
const (
	StoreImport ImportMode = "store"

	// DryRunImport stores nothing. The result names what no client may set. It does not
	// predict other refusals of pushers: over a limit, a taken pushkey, a device that is
	// gone, an address that is not confirmed.
	DryRunImport ImportMode = "dry run"
)

// ImportOutcome is the outcome for the rules or the pushers.
type ImportOutcome string

// The outcomes.
const (
	Imported        ImportOutcome = "imported"
	AlreadyThere    ImportOutcome = "already there"     // rules are stored and stay; the user has all of the pushers
	NothingToImport ImportOutcome = "nothing to import" // no pushers
)

// ImportResult is the result of an import.
type ImportResult struct {
	Rules   ImportedRules
	Pushers ImportedPushers
}

// Refused returns the number of refused rules and pushers.
func (r ImportResult) Refused() int { return len(r.Rules.Refused) + len(r.Pushers.Refused) }

// ImportedRules is the result for the rules; see [pushrule.Imported].
type ImportedRules struct {
	Outcome ImportOutcome
	Own     int // stored rules that are not defaults
	Refused []pushrule.RefusedRule
	Dropped []pushrule.Name
}

// ImportedPushers is the result for the pushers.
type ImportedPushers struct {
	Outcome ImportOutcome
	Stored  int // number of added pushers
	Refused []RefusedPusher
}

// RefusedPusher describes a pusher that was not imported. It has a digest in place of the
// pushkey.
type RefusedPusher struct {
	AppID string
	Key   pusher.Digest
	Err   error
}
