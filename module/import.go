package module

import (
	"context"
	"errors"
	"fmt"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
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
	StoreImport  ImportMode = "store"
	DryRunImport ImportMode = "dry run" // stores nothing and returns the result of an import
)

// ImportOutcome is the outcome for the rules or the pushers.
type ImportOutcome string

// The outcomes.
const (
	Imported        ImportOutcome = "imported"
	AlreadyThere    ImportOutcome = "already there"     // stored data exists and stays
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
	Stored  int // number of stored pushers
	Refused []RefusedPusher
}

// RefusedPusher describes a pusher that was not imported. It has a digest in place of the
// pushkey.
type RefusedPusher struct {
	AppID string
	Key   pusher.Digest
	Err   error
}

// importer stores a user's pushers first, then the rules, so a user with rules has been
// imported completely, and removed pushers do not come back. The importer's own
// services use the plain stores. The stores of all other services import a user at
// first use, if the host has an [ImportSource].
type importer struct {
	rules    *ruleService
	pushers  *pusherService
	accounts Accounts
	source   ImportSource // may be nil
	present  presentUsers
	observer observe.Observer
}

func newImporter(rules ruleService, pushers pusherService, o Options) *importer {
	i := &importer{rules: &rules, pushers: &pushers, accounts: o.Accounts, source: o.ImportSource, observer: rules.observer}
	i.present.users.Limit = maxPresent
	return i
}

// run imports a user; see [HostService.Import]. After an error, the result names what
// was stored.
func (i *importer) run(ctx context.Context, user mxid.UserID, from Import, how ImportMode) (ImportResult, error) {
	stored, err := i.rules.store.Load(ctx, user)
	if err != nil {
		return ImportResult{}, err
	}
	return i.runLoaded(ctx, stored, user, from, how)
}

// runLoaded is run for a caller that has just loaded the user's stored rules.
func (i *importer) runLoaded(
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
		if set, err = i.setFrom(user, from.Rules); err != nil { // before anything is stored
			return ImportResult{}, err
		}
		result.Rules = ImportedRules{Imported, set.Own, set.Refused, set.Dropped}
	}
	if result.Pushers, err = i.importPushers(ctx, user, from.Pushers, how); err != nil {
		return ImportResult{Pushers: result.Pushers}, err
	}
	if stored.Found() || how == DryRunImport {
		return result, nil
	}
	made, err := i.storeRules(ctx, user, set.Rules)
	if err == nil && !made {
		result.Rules = ImportedRules{Outcome: AlreadyThere}
	}
	return result, err
}

// forget removes all of a user's data. The source forgets the user first, because a
// user without rules would be imported again. If the source fails, the rules stay.
func (i *importer) forget(ctx context.Context, user mxid.UserID) error {
	failed := i.forgetAtSource(ctx, user)
	if err := i.pushers.forget(ctx, user); err != nil || failed != nil {
		return errors.Join(failed, err)
	}
	return i.rules.forget(ctx, user)
}

func (i *importer) forgetAtSource(ctx context.Context, user mxid.UserID) error {
	if i.source == nil {
		return nil
	}
	if err := i.source.Forget(ctx, user); err != nil {
		return fault.Wrap(fault.Unavailable, "The source of imports has not forgotten the user, call ForgetUser again.",
			fmt.Errorf("import source: forget: %w", err))
	}
	return nil
}

func (i *importer) setFrom(user mxid.UserID, content string) (pushrule.Imported, error) {
	defaults := i.rules.defaults.For(user)
	if content == "" {
		return pushrule.Imported{Rules: defaults}, nil
	}
	return pushrule.Import(content, defaults, i.rules.limits)
}

// storeRules stores a set unless the user has rules.
func (i *importer) storeRules(ctx context.Context, user mxid.UserID, set pushrule.Ruleset) (made bool, err error) {
	content, err := i.rules.change(ctx, user, func(rules *pushrule.Ruleset, found bool) error {
		if made = !found; made {
			*rules = set
		}
		return nil
	})
	if err != nil || !made {
		return false, err
	}
	i.observer.Count(observe.RuleSetImported, "", 1)
	_, err = i.rules.checkLoggedIn(ctx, user, content)
	return true, err
}
