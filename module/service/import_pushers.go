package service

import (
	"context"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// importPushers sets the pushers that the user does not have, one by one. So an import
// that ended early goes on when it is repeated.
func (i *importer) importPushers(
	ctx context.Context, user mxid.UserID, pushers []pusher.Pusher, how module.ImportMode,
) (result module.ImportedPushers, err error) {
	if len(pushers) == 0 {
		return module.ImportedPushers{Outcome: module.NothingToImport}, nil
	}
	result.Outcome = module.AlreadyThere
	there, err := i.pushers.List(ctx, user)
	switch {
	case fault.KindOf(err) == fault.Database: // unreadable pushers stay
		return result, nil
	case err != nil:
		return module.ImportedPushers{}, err
	}
	seen := map[pusher.Key]bool{}
	for _, p := range pushers {
		p.Key = p.Canonical()
		_, isThere := there.Pusher(p.Key)
		if isThere && !seen[p.Key] {
			seen[p.Key] = true
			continue
		}
		result.Outcome = module.Imported
		switch err := i.importPusher(ctx, user, p, seen, how); {
		case fault.KindOf(err) == fault.Unavailable, err != nil && fault.KindOf(err) == fault.Internal:
			return result, err
		case err != nil:
			result.Refused = append(result.Refused, module.RefusedPusher{AppID: p.AppID, Key: p.Digest(), Err: err})
		default:
			result.Stored++
		}
	}
	return result, nil
}

// importPusher sets a pusher, unless seen has its key.
func (i *importer) importPusher(ctx context.Context, user mxid.UserID, given pusher.Pusher, seen map[pusher.Key]bool, how module.ImportMode) error {
	p, err := i.pushers.policy.CheckImported(given)
	switch {
	case err != nil:
		return err
	case seen[p.Key]:
		return pusher.ErrTwice
	}
	seen[p.Key] = true
	if how == module.DryRunImport {
		return nil
	}
	return i.pushers.Set(ctx, user, p, pusher.Imported)
}
