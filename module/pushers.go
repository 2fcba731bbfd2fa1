package module

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

var _ PusherService = (*pusherService)(nil)

type pusherService struct {
	store    PusherStore
	pushkeys pushkeys
	options  PusherOptions
}

// PusherOptions are what pushers depend on beside their stores.
type PusherOptions struct {
	Policy   pusher.Policy
	Accounts Accounts // nil where the host has none
}

// NewPusherService returns the module's pusher service.
func NewPusherService(store PusherStore, index PushkeyIndex, o PusherOptions) PusherService {
	return newPusherService(store, index, o)
}

func newPusherService(store PusherStore, index PushkeyIndex, o PusherOptions) *pusherService {
	return &pusherService{store, pushkeys{index, store}, o}
}

func (s *pusherService) List(ctx context.Context, user mxid.UserID) (pusher.List, error) {
	return s.store.Load(ctx, user)
}

func (s *pusherService) Set(ctx context.Context, user mxid.UserID, p pusher.Pusher, others pusher.Others) error {
	if err := s.options.Policy.Check(p); err != nil {
		return err
	}
	err := s.renew(ctx, user, p, others)
	if errors.Is(err, errNoClaim) {
		return s.claim(ctx, user, p, others)
	}
	if err != nil {
		return err
	}
	return s.checkLoggedIn(ctx, user, p)
}

// errNoClaim ends the renewal of a pusher that cannot do with the claim it has.
var errNoClaim = errors.New("the pusher needs a claim to its pushkey")

// renew sets a pusher in the place of one with a claim that serves as well: a
// claim that leaves others alone, or one to a key that nobody else claims.
func (s *pusherService) renew(ctx context.Context, user mxid.UserID, p pusher.Pusher, others pusher.Others) error {
	alone := false
	if others == pusher.RemoveOthers {
		claims, err := s.pushkeys.index.Load(ctx, p.Digest())
		if err != nil {
			return err
		}
		alone = claims.IsOnly(user)
	}
	return s.store.Update(ctx, user, func(list *pusher.List) error {
		held, found := list.Pusher(p.Key)
		if !found || held.Claim.Number == 0 || others == pusher.RemoveOthers && !alone {
			return errNoClaim
		}
		p := p
		p.Claim = held.Claim
		if alone {
			p.Claim.Others = pusher.RemoveOthers
		}
		list.Set(p)
		return nil
	})
}

// claim sets a pusher with a claim of its own, in an order of writes that
// leaves no owner too many behind, whenever the process ends: the index knows
// of the claim before there is a pusher of it; a key that somebody else claims
// is postponed before that, too; and each who sets a pusher looks at the claims
// afterwards, so that of two the last one sees both.
func (s *pusherService) claim(ctx context.Context, user mxid.UserID, p pusher.Pusher, others pusher.Others) error {
	number, claims, err := s.pushkeys.claim(ctx, user, p.Digest(), s.options.Policy)
	if err != nil {
		return err
	}
	unsettled := Unsettled{p.Digest(), number}
	shared := !claims.IsOnly(user)
	if shared {
		if err := s.pushkeys.index.Postpone(ctx, unsettled); err != nil {
			return err
		}
	}
	p.Claim = pusher.Claim{Number: number, Others: others}
	if err := s.put(ctx, user, p); err != nil {
		if fault.KindOf(err) != fault.Unavailable {
			s.pushkeys.release(ctx, user, p)
		}
		return err
	}
	if err := s.checkLoggedIn(ctx, user, p); err != nil {
		return err
	}
	if !shared {
		claims, err := s.pushkeys.index.Load(ctx, p.Digest())
		if err != nil || claims.IsOnly(user) {
			return err
		}
	}
	return s.pushkeys.settle(ctx, unsettled)
}

// put stores a pusher with its claim.
func (s *pusherService) put(ctx context.Context, user mxid.UserID, p pusher.Pusher) error {
	return s.store.Update(ctx, user, func(list *pusher.List) error {
		p := p
		if held, found := list.Pusher(p.Key); found && held.Claim.Number > p.Claim.Number {
			p.Claim = held.Claim // another request of the user has claimed since
		}
		before := list.Len()
		list.Set(p)
		return s.options.Policy.CheckCount(before, list)
	})
}

// checkLoggedIn takes back a pusher that was set for a device that is gone by
// now. Its removal came either after the pusher, and has removed it, or before
// it, and is seen here.
func (s *pusherService) checkLoggedIn(ctx context.Context, user mxid.UserID, p pusher.Pusher) error {
	device := p.Device
	if p.Kind == pusher.Email {
		device = ""
	}
	loggedIn, err := s.options.loggedIn(ctx, user, device)
	if err != nil || loggedIn {
		return err
	}
	err = s.remove(ctx, user, func(q pusher.Pusher) bool { return q.Key == p.Key && q.Device == p.Device })
	if err != nil {
		return err
	}
	s.pushkeys.release(ctx, user, p)
	return ErrLoggedOut
}

func (o PusherOptions) loggedIn(ctx context.Context, user mxid.UserID, device string) (bool, error) {
	return isLoggedIn(ctx, o.Accounts, user, device)
}

// isLoggedIn asks the host, if it can tell.
func isLoggedIn(ctx context.Context, accounts Accounts, user mxid.UserID, device string) (bool, error) {
	if accounts == nil {
		return true, nil
	}
	loggedIn, err := accounts.LoggedIn(ctx, user, device)
	if err != nil {
		return false, Unavailable(fmt.Errorf("accounts: %w", err))
	}
	return loggedIn, nil
}

func (s *pusherService) Delete(ctx context.Context, user mxid.UserID, key pusher.Key) error {
	return s.remove(ctx, user, func(p pusher.Pusher) bool { return p.Key == key })
}

// remove removes the pushers that match, and then their claims: the index may
// name too many, never too few.
func (s *pusherService) remove(ctx context.Context, user mxid.UserID, match func(pusher.Pusher) bool) error {
	var removed []pusher.Pusher
	err := s.store.Update(ctx, user, func(list *pusher.List) error {
		removed = list.Remove(match)
		return nil
	})
	if err != nil {
		return err
	}
	for _, p := range removed {
		s.pushkeys.release(ctx, user, p)
	}
	return nil
}

// removeDevices removes the pushers that devices set.
func (s *pusherService) removeDevices(ctx context.Context, user mxid.UserID, devices []string) error {
	return s.remove(ctx, user, func(p pusher.Pusher) bool {
		return p.Kind != pusher.Email && p.Device != "" && slices.Contains(devices, p.Device)
	})
}

// keepOnlyDevice removes the pushers that other devices set.
func (s *pusherService) keepOnlyDevice(ctx context.Context, user mxid.UserID, device string) error {
	return s.remove(ctx, user, func(p pusher.Pusher) bool {
		return p.Kind != pusher.Email && (p.Device == "" || p.Device != device)
	})
}

// forget removes all that is stored for a user. The claims go first, so that a
// repetition finds whatever is left of them.
func (s *pusherService) forget(ctx context.Context, user mxid.UserID) error {
	for {
		list, err := s.store.Load(ctx, user)
		if err != nil && fault.KindOf(err) != fault.Database {
			return err
		}
		if list.Len() == 0 {
			return s.store.Delete(ctx, user)
		}
		if err := s.forgetPushers(ctx, user, list.All()); err != nil {
			return err
		}
	}
}

func (s *pusherService) forgetPushers(ctx context.Context, user mxid.UserID, pushers []pusher.Pusher) error {
	for _, p := range pushers {
		if err := s.pushkeys.drop(ctx, user, p); err != nil {
			return err
		}
	}
	return s.store.Update(ctx, user, func(list *pusher.List) error {
		list.Remove(func(p pusher.Pusher) bool {
			return slices.ContainsFunc(pushers, func(q pusher.Pusher) bool { return q.Key == p.Key && q.Claim == p.Claim })
		})
		return nil
	})
}

// now is the time for claims, in microseconds since 1970.
func now() int64 { return time.Now().UnixMicro() }
