package module

import (
	"context"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

var _ SyncService = (*syncService)(nil)

type syncService struct {
	rules RuleService
	feed  *Feed
}

func (s *syncService) Since(ctx context.Context, user mxid.UserID, since int64) (SyncUpdate, error) {
	// The channel exists before the rules are read, so that no change is missed.
	update := SyncUpdate{Token: since, Changed: s.feed.nextChange(ctx, user)}
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
