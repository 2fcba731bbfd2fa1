package feed

import (
	"context"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

var _ module.SyncService = (*syncService)(nil)

type syncService struct {
	rules module.RuleService
	feed  *Feed
}

// Sync returns the calls for /sync. It reads through rules: the service's, or the host's
// wrapper of it.
func (f *Feed) Sync(rules module.RuleService) module.SyncService { return &syncService{rules, f} }

func (s *syncService) Since(ctx context.Context, user mxid.UserID, since int64) (module.SyncUpdate, error) {
	// The channel exists before the rules are read, so that no change is missed.
	update := module.SyncUpdate{Token: since, Changed: s.feed.nextChange(ctx, user)}
	if s.feed.version(user) == since && since != 0 { // the sync has the current rules
		return update, nil
	}
	l := s.feed.begin(user)
	content, err := s.rules.Content(ctx, user)
	if err != nil {
		if fault.KindOf(err) == fault.Unavailable && ctx.Err() == nil {
			s.feed.fail(l)
		}
		return update, err
	}
	s.feed.finish(l, content.Version)
	if content.Version != since {
		update.Content, update.New, update.Token = content, true, content.Version
	}
	return update, nil
}
