package module

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/internal/bounded"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
)

// firstUse imports a user without rules, and reports whether the user has rules then. It
// always asks the store, since pushers that a user has removed must not come back.
func (i *importer) firstUse(ctx context.Context, user mxid.UserID) (present bool, err error) {
	source := i.source
	if source == nil {
		return false, nil
	}
	stored, err := i.rules.store.Load(ctx, user)
	if err != nil || stored.Found() {
		return stored.Found(), err
	}
	from, found, err := loadFrom(ctx, source, user)
	if err != nil || !found {
		return false, err
	}
	result, err := i.runBeside(ctx, stored, user, from, StoreImport)
	if result.Refused() > 0 {
		i.observer.Report(observe.ImportIncomplete, &ImportRefused{user, result})
	}
	if err != nil {
		return false, err
	}
	present, err = i.stillThere(ctx, user, source, result)
	if present {
		i.present.add(user)
	}
	return present, err
}

// ImportRefused reports that a part of a user's data was refused at the first use.
type ImportRefused struct {
	User   mxid.UserID
	Result ImportResult
}

// Error gives the number of refused rules and pushers.
func (r *ImportRefused) Error() string {
	return fmt.Sprintf("module: import of %s: %d rules or pushers refused", r.User, r.Result.Refused())
}

func loadFrom(ctx context.Context, source ImportSource, user mxid.UserID) (Import, bool, error) {
	from, found, err := source.Load(ctx, user)
	if err != nil {
		return Import{}, false, fault.Wrap(fault.Unavailable, "The server cannot import the user's push rules and pushers, try again later.",
			fmt.Errorf("import source: %w", err))
	}
	return from, found, nil
}

// forgetAtSource makes the source forget a user.
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

// stillThere removes imported data if the host has forgotten the user during the import.
// [HostService.ForgetUser] first calls the source's Forget and then removes stored data:
// either it has removed this data, or the source no longer has the user.
func (i *importer) stillThere(ctx context.Context, user mxid.UserID, source ImportSource, result ImportResult) (bool, error) {
	if i.accounts != nil || result.Rules.Outcome != Imported && result.Pushers.Outcome != Imported {
		return true, nil
	}
	_, found, err := loadFrom(ctx, source, user)
	if err != nil || found {
		return found, err
	}
	if result.Pushers.Outcome == Imported {
		if err := i.pushers.forget(ctx, user); err != nil {
			return false, err
		}
	}
	if result.Rules.Outcome == Imported {
		err = i.rules.forget(ctx, user)
	}
	return false, err
}

func (i *importer) seen(user mxid.UserID) {
	if i.source != nil {
		i.present.add(user)
	}
}

// importIfMissing is importMissing for one user. Imported is true if data may be stored
// now that was not stored before.
func (i *importer) importIfMissing(ctx context.Context, user mxid.UserID) (imported bool, err error) {
	result := i.importMissing(ctx, []mxid.UserID{user})[user]
	return result.Value, result.Err
}

// importMissing imports the users without rules, with a result for each user that it
// imported or failed to import. It remembers users with rules, so it usually asks the
// store once for each.
func (i *importer) importMissing(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[bool] {
	if i.source == nil {
		return nil
	}
	users = i.present.unknown(users)
	if len(users) == 0 {
		return nil
	}
	failed := map[mxid.UserID]Result[bool]{}
	var missing []mxid.UserID
	for user, version := range i.rules.store.Versions(ctx, users) {
		switch {
		case version.Err != nil:
			failed[user] = Result[bool]{Err: version.Err}
		case version.Value != 0:
			i.present.add(user)
		default:
			missing = append(missing, user)
		}
	}
	all := i.importMany(ctx, missing)
	for user, result := range failed {
		all[user] = result
	}
	return all
}

const maxImports = 16

// importMany has a result for each user of the source, and for each user for whom the
// source failed.
func (i *importer) importMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[bool] {
	all := map[mxid.UserID]Result[bool]{}
	if i.source == nil {
		return all
	}
	var mu sync.Mutex
	var importing errgroup.Group
	importing.SetLimit(maxImports)
	for _, user := range users {
		importing.Go(func() error {
			present, err := i.firstUse(ctx, user)
			mu.Lock()
			defer mu.Unlock()
			if present || err != nil {
				all[user] = Result[bool]{present, err}
			}
			return nil
		})
	}
	_ = importing.Wait() // each user has its own error
	return all
}

// presentUsers have rules.
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
