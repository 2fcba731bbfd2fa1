package module

import (
	"context"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

var _ PusherService = (*pusherService)(nil)

type pusherService struct {
	store  PusherStore
	policy pusher.Policy
}

// NewPusherService returns the module's pusher service.
func NewPusherService(store PusherStore, policy pusher.Policy) PusherService {
	return &pusherService{store, policy}
}

func (s *pusherService) List(ctx context.Context, user mxid.UserID) (pusher.List, error) {
	return s.store.Load(ctx, user)
}

func (s *pusherService) Set(ctx context.Context, user mxid.UserID, p pusher.Pusher) error {
	if err := s.policy.Check(p); err != nil {
		return err
	}
	return s.store.Update(ctx, user, func(list *pusher.List) error {
		before := list.Len()
		list.Set(p)
		return s.policy.CheckCount(before, list)
	})
}

func (s *pusherService) Delete(ctx context.Context, user mxid.UserID, key pusher.Key) error {
	return s.store.Update(ctx, user, func(list *pusher.List) error {
		list.Delete(key)
		return nil
	})
}
