package module

import (
	"context"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// Import is what a user has on a server that did without the module.
type Import struct {
	// Rules is the content of the user's m.push_rules event as JSON,
	// {"global":{...}}; see [pushrule.Import]. Empty is that of a user who has
	// changed nothing, and gets the server-default rules.
	Rules string

	// Pushers are in order of creation. Device is the one that set a pusher:
	// without it, a pusher that is not of kind email ends at the next
	// [HostService.RetainDevicePushers]. Extra has what clients see beside the
	// other fields; see [pusher.ProfileTag]. SetAt may be when it was last set, in
	// microseconds since 1970; 0 is now. Created and Claim do not matter.
	Pushers []pusher.Pusher
}

// ImportMode says whether an import is to be made.
type ImportMode string

// The modes.
const (
	StoreImport  ImportMode = "store"
	DryRunImport ImportMode = "dry run" // changes nothing; the result is what it would be
)

// ImportOutcome is what became of a part of an import.
type ImportOutcome string

// The outcomes.
const (
	Imported        ImportOutcome = "imported"
	AlreadyThere    ImportOutcome = "already there"     // something is stored, and stays
	NothingToImport ImportOutcome = "nothing to import" // of pushers: there are none
)

// ImportResult is what an import came to.
type ImportResult struct {
	Rules   ImportedRules
	Pushers ImportedPushers
}

// Refused returns how many rules and pushers were refused.
func (r ImportResult) Refused() int { return len(r.Rules.Refused) + len(r.Pushers.Refused) }

// ImportedRules is what became of the rules; see [pushrule.Imported].
type ImportedRules struct {
	Outcome ImportOutcome
	Own     int // rules of the user's own that were stored
	Refused []pushrule.RefusedRule
	Dropped []pushrule.Name
}

// ImportedPushers is what became of the pushers.
type ImportedPushers struct {
	Outcome ImportOutcome
	Stored  int // how many were stored
	Refused []RefusedPusher
}

// RefusedPusher is a pusher that was not imported. It does not tell the pushkey.
type RefusedPusher struct {
	AppID string
	Key   pusher.Digest
	Err   error
}

// importer imports what users have elsewhere. It stores the pushers first, and the
// rules then: a user who has rules has been imported, and nothing of what they remove
// afterwards comes back.
type importer struct {
	rules    *ruleService
	pushers  *pusherService
	accounts Accounts
	source   ImportSource
	present  presentUsers
	observer observe.Observer
}

// run imports a user. After an error the result says what was done.
func (i *importer) run(ctx context.Context, user mxid.UserID, from Import, how ImportMode) (ImportResult, error) {
	stored, err := i.rules.store.Load(ctx, user)
	if err != nil {
		return ImportResult{}, err
	}
	return i.runBeside(ctx, stored, user, from, how)
}

// runBeside is run beside rules that are stored, or none.
func (i *importer) runBeside(
	ctx context.Context, stored Content, user mxid.UserID, from Import, how ImportMode,
) (result ImportResult, err error) {
	loggedIn, err := isLoggedIn(ctx, i.accounts, user, "")
	if err == nil && !loggedIn {
		err = ErrLoggedOut
	}
	if err != nil {
		return result, err
	}
	var set pushrule.Imported
	if result.Rules.Outcome = AlreadyThere; !stored.Found() {
		if set, err = i.rules.importedSet(user, from.Rules); err != nil { // before anything is stored
			return ImportResult{}, err
		}
		result.Rules = ImportedRules{Imported, set.Own, set.Refused, set.Dropped}
	}
	if result.Pushers, err = i.pushers.importAll(ctx, user, from.Pushers, how); err != nil {
		return ImportResult{Pushers: result.Pushers}, err
	}
	if stored.Found() || how == DryRunImport {
		return result, nil
	}
	made, err := i.rules.storeImport(ctx, user, set.Rules)
	if err == nil && !made {
		result.Rules = ImportedRules{Outcome: AlreadyThere}
	}
	return result, err
}

// importedSet makes a set of rules from elsewhere.
func (s *ruleService) importedSet(user mxid.UserID, content string) (pushrule.Imported, error) {
	defaults := s.defaults.For(user)
	if content == "" {
		return pushrule.Imported{Rules: defaults}, nil
	}
	return pushrule.Import(content, defaults, s.limits)
}

// storeImport stores a set for a user who has none; made is false for one who
// has.
func (s *ruleService) storeImport(ctx context.Context, user mxid.UserID, set pushrule.Ruleset) (made bool, err error) {
	content, err := s.change(ctx, user, func(rules *pushrule.Ruleset, found bool) error {
		if made = !found; made {
			*rules = set
		}
		return nil
	})
	if err != nil || !made {
		return false, err
	}
	s.observer.Count(observe.RuleSetImported, "", 1)
	_, err = s.checkLoggedIn(ctx, user, content)
	return true, err
}
