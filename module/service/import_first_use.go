package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/pushfx/pushfx/module"

	"golang.org/x/sync/errgroup"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/internal/bounded"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
)

// firstUse imports a user without rules, and reports whether the user has rules then.
// It reads the store, because i.present forgets users: a second import would bring back
// pushers that the user has removed.
func (i *importer) firstUse(ctx context.Context, user mxid.UserID) (present bool, err error) {
	stored, err := i.rules.store.Load(ctx, user)
	if err != nil || stored.Found() {
		return stored.Found(), err
	}
	from, found, err := i.loadFromSource(ctx, user)
	if err != nil || !found {
		return false, err
	}
	// Another host may have imported the user meanwhile.
	if stored, err = i.rules.store.Load(ctx, user); err != nil || stored.Found() {
		return stored.Found(), err
	}
	result, err := i.runLoaded(ctx, stored, user, from, module.StoreImport)
	if result.Refused() > 0 {
		i.observer.Report(observe.ImportIncomplete, &ImportRefused{user, result})
	}
	if err != nil {
		return false, err
	}
	present, err = i.stillThere(ctx, user, result)
	if present {
		i.present.add(user)
	}
	return present, err
}

// ImportRefused reports that a part of a user's data was refused at the first use.
type ImportRefused struct {
	User   mxid.UserID
	Result module.ImportResult
}

// Error gives the number of refused rules and pushers.
func (r *ImportRefused) Error() string {
	return fmt.Sprintf("service: import of %s: %d rules or pushers refused", r.User, r.Result.Refused())
}

func (i *importer) loadFromSource(ctx context.Context, user mxid.UserID) (module.Import, bool, error) {
	from, found, err := i.source.Load(ctx, user)
	if err != nil {
		return module.Import{}, false, fault.Wrap(fault.Unavailable, "The server cannot import the user's push rules and pushers, try again later.",
			fmt.Errorf("import source: %w", err))
	}
	return from, found, nil
}

// stillThere removes imported data if the host has forgotten the user during the
// import. [module.HostService.ForgetUser] first calls the source's Forget and then removes
// stored data: so either ForgetUser has removed this data, or the source no longer has
// the user.
func (i *importer) stillThere(ctx context.Context, user mxid.UserID, result module.ImportResult) (bool, error) {
	if i.accounts != nil || result.Rules.Outcome != module.Imported && result.Pushers.Outcome != module.Imported {
		return true, nil
	}
	_, found, err := i.loadFromSource(ctx, user)
	if err != nil || found {
		return found, err
	}
	if result.Pushers.Outcome == module.Imported {
		if err := i.pushers.forget(ctx, user); err != nil {
			return false, err
		}
	}
	if result.Rules.Outcome == module.Imported {
		err = i.rules.forget(ctx, user)
	}
	return false, err
}

const maxImports = 16

// firstUses is firstUse for many users. A user that the source does not have is neither
// imported nor failed.
func (i *importer) firstUses(ctx context.Context, users []mxid.UserID) (imported []mxid.UserID, failed map[mxid.UserID]error) {
	failed = map[mxid.UserID]error{}
	var mu sync.Mutex
	var importing errgroup.Group
	importing.SetLimit(maxImports)
	for _, user := range users {
		importing.Go(func() error {
			present, err := i.firstUse(ctx, user)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				failed[user] = err
			case present:
				imported = append(imported, user)
			}
			return nil
		})
	}
	_ = importing.Wait() // each user has its own error
	return imported, failed
}

// importMissing imports the users that have no rules; see firstUses. It remembers users
// with rules, so it asks the store about each of them only once. Neither a deactivated
// user counts as failed, nor one whose rules are unreadable.
func (i *importer) importMissing(ctx context.Context, users []mxid.UserID) (failed map[mxid.UserID]error) {
	users = i.present.unknown(users)
	if len(users) == 0 {
		return nil
	}
	unversioned := map[mxid.UserID]error{}
	var without []mxid.UserID
	for user, version := range i.rules.store.Versions(ctx, users) {
		switch {
		case fault.KindOf(version.Err) == fault.Database:
		case version.Err != nil:
			unversioned[user] = version.Err
		case version.Value != 0:
			i.present.add(user)
		default:
			without = append(without, user)
		}
	}
	_, failed = i.firstUses(ctx, without)
	maps.DeleteFunc(failed, func(_ mxid.UserID, err error) bool { return errors.Is(err, module.ErrLoggedOut) })
	maps.Copy(failed, unversioned)
	return failed
}

// presentUsers remembers users that have rules.
type presentUsers struct {
	mu    sync.Mutex
	users bounded.Map[mxid.UserID, struct{}]
}

const maxPresent = 1 << 16

func (p *presentUsers) add(user mxid.UserID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users.Put(user, struct{}{}, 1)
}

func (p *presentUsers) unknown(users []mxid.UserID) (unknown []mxid.UserID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, user := range users {
		if _, found := p.users.Get(user); !found {
			unknown = append(unknown, user)
		}
	}
	return unknown
}
