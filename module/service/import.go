package service

import (
	"context"
	"errors"
	"fmt"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pushrule"
)

// importer sets a user's pushers first, then stores the rules. Rules mark the end of the
// import: removed pushers of a user with rules do not come back at a first use. The
// importer's own services use the plain stores. The stores of all other services import
// a user at first use, if the host has an [module.ImportSource].
type importer struct {
	rules    *ruleService
	pushers  *pusherService
	accounts module.Accounts
	source   module.ImportSource // may be nil
	present  presentUsers
	observer observe.Observer
}

func newImporter(rules ruleService, pushers pusherService, o Options) *importer {
	i := &importer{rules: &rules, pushers: &pushers, accounts: o.Accounts, source: o.ImportSource, observer: rules.observer}
	i.present.users.Limit = maxPresent
	return i
}

// run imports a user; see [module.HostService.Import]. After an error, the result names what
// was stored.
func (i *importer) run(ctx context.Context, user mxid.UserID, from module.Import, how module.ImportMode) (module.ImportResult, error) {
	stored, err := i.rules.store.Load(ctx, user)
	if err != nil {
		return module.ImportResult{}, err
	}
	return i.runLoaded(ctx, stored, user, from, how)
}

// runLoaded is run for a caller that has just loaded the user's stored rules.
func (i *importer) runLoaded(
	ctx context.Context, stored module.Content, user mxid.UserID, from module.Import, how module.ImportMode,
) (result module.ImportResult, err error) {
	loggedIn, err := isLoggedIn(ctx, i.accounts, user, "")
	if err == nil && !loggedIn {
		err = module.ErrLoggedOut
	}
	if err != nil {
		return result, err
	}
	var set pushrule.Imported
	if result.Rules.Outcome = module.AlreadyThere; !stored.Found() {
		if set, err = i.setFrom(user, from.Rules); err != nil { // before anything is stored
			return module.ImportResult{}, err
		}
		result.Rules = module.ImportedRules{Outcome: module.Imported, Own: set.Own, Refused: set.Refused, Dropped: set.Dropped}
	}
	if result.Pushers, err = i.importPushers(ctx, user, from.Pushers, how); err != nil {
		return module.ImportResult{Pushers: result.Pushers}, err
	}
	if stored.Found() || how == module.DryRunImport {
		return result, nil
	}
	made, err := i.storeRules(ctx, user, set.Rules)
	if err == nil && !made {
		result.Rules = module.ImportedRules{Outcome: module.AlreadyThere}
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
