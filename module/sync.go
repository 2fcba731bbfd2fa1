package module

import (
	"context"

	"github.com/pushfx/pushfx/module/mxid"
)

var _ SyncService = (*syncService)(nil)

// syncService is the part of a [Service] that /sync calls.
type syncService struct {
	rules RuleService
	feed  *Feed
}

func (s *syncService) Version(ctx context.Context, user mxid.UserID) (int64, error) {
	if version := s.feed.version(user); version != 0 {
		return version, nil
	}
	content, err := s.load(ctx, user)
	return content.Version, err
}

func (s *syncService) ContentSince(ctx context.Context, user mxid.UserID, since int64) (Content, bool, error) {
	if current := s.feed.version(user); since != 0 && since == current {
		return Content{}, false, nil
	}
	content, err := s.load(ctx, user)
	if err != nil || content.Version == since {
		return Content{}, false, err
	}
	return content, true, nil
}

// load asks the store, and has the feed observe the version.
func (s *syncService) load(ctx context.Context, user mxid.UserID) (Content, error) {
	l := s.feed.begin(user)
	content, err := s.rules.Content(ctx, user)
	if err == nil {
		s.feed.finish(l, content.Version)
	}
	return content, err
}
