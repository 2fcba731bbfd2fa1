package module

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/pushfx/pushfx/module/internal/bounded"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
)

// firstUse imports a user who has no rules here, and reports whether the user has
// rules then: the source need not have them. It asks the store itself, whatever its
// caller has found: pushers that a user has removed must not come back.
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

// ImportRefused reports that a part of what a user has was refused at the first use.
type ImportRefused struct {
	User   mxid.UserID
	Result ImportResult
}

// Error tells how much was refused.
func (r *ImportRefused) Error() string {
	return fmt.Sprintf("module: import of %s: %d rules or pushers refused", r.User, r.Result.Refused())
}

func loadFrom(ctx context.Context, source ImportSource, user mxid.UserID) (Import, bool, error) {
	from, found, err := source.Load(ctx, user)
	if err != nil {
		return Import{}, false, sourceFailed(err)
	}
	return from, found, nil
}

func sourceFailed(cause error) error { return Unavailable(fmt.Errorf("import source: %w", cause)) }

// stillThere takes back what was imported for a user whom the host has forgotten
// meanwhile. [HostService.ForgetUser] has the source forget first, and removes
// then: either it has removed what was stored here, or the source does not have
// the user by now. Accounts have been asked already.
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

// seen remembers a user who has rules.
func (i *importer) seen(user mxid.UserID) {
	if i.source != nil {
		i.present.add(user)
	}
}

// importIfMissing is importMissing of one; imported is true if there may be something
// now that was not there before.
func (i *importer) importIfMissing(ctx context.Context, user mxid.UserID) (imported bool, err error) {
	result := i.importMissing(ctx, []mxid.UserID{user})[user]
	return result.Value, result.Err
}

// importMissing imports those of many users who have no rules, with a result for each
// whom it has imported or failed to. It asks the store about each user once, as far
// as it can remember them.
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

// maxImports is how many users are imported at the same time.
const maxImports = 16

// importMany is firstUse of many users. It has a result for each user whom the source
// has, and an error for each about whom the source could not answer.
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

// presentUsers are users who are known to have rules, so that nobody asks again
// whether they are still to be imported.
type presentUsers struct {
	mu    sync.Mutex
	users bounded.Map[mxid.UserID, struct{}]
}

// maxPresent bounds how many are remembered.
const maxPresent = 1 << 16

func (p *presentUsers) add(user mxid.UserID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users.Put(user, struct{}{}, 1)
}

// unknown returns those of users who are not remembered.
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
