package service_test

import (
	"context"
	"testing"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/service"
)

// wantOneClaim checks that the index has one claim of alice, which is her pusher's.
func (m *memory) wantOneClaim(t *testing.T) {
	t.Helper()
	list := m.Lists[alice]
	p, found := list.Pusher(thePushkey)
	claims := m.Claims[thePushkey.Digest()]
	owners := claims.Owners()
	if !found || len(owners) != 1 || owners[0] != (pusher.Owner{User: alice, Claim: p.Claim.Number}) {
		t.Errorf("the pusher has the claim %+v (found %t), the index has %+v", p.Claim, found, owners)
	}
}

// A later request of the user ends before the earlier one has stored its pusher.
func TestThePusherKeepsTheLastClaimOfItsUser(t *testing.T) {
	t.Parallel()
	m, later, last := newMemory(), false, int64(0)
	pushers := service.New(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, usual()).Pushers()
	set := func(lang string) {
		t.Helper()
		if err := pushers.Set(t.Context(), alice, pusherOf(lang), pusher.RemoveOthers); err != nil {
			t.Error(err)
		}
	}
	m.Before = func(operation string) error {
		if operation == "update pushers" && !later {
			later = true
			set("later")
			list := m.Lists[alice]
			p, _ := list.Pusher(thePushkey)
			last = p.Claim.Number
		}
		return nil
	}
	set("earlier")
	m.wantOneClaim(t)
	list := m.Lists[alice]
	if p, _ := list.Pusher(thePushkey); p.Lang != "earlier" || p.Claim.Number != last || last == 0 {
		t.Errorf("the pusher is of the %s request with claim %d, want the earlier one's with claim %d", p.Lang, p.Claim.Number, last)
	}
}

// lostReplies stores pushers, and says that it has not.
type lostReplies struct{ module.PusherStore }

func (s lostReplies) Update(ctx context.Context, user mxid.UserID, edit func(*pusher.List) error) error {
	if err := s.PusherStore.Update(ctx, user, edit); err != nil {
		return err
	}
	return module.Unavailable(errDown)
}

func TestAPusherThatMayBeStoredKeepsItsClaim(t *testing.T) {
	t.Parallel()
	m := newMemory()
	pushers := service.New(module.Stores{Pushers: lostReplies{m}, Pushkeys: m.index()}, nil, usual()).Pushers()
	if err := pushers.Set(t.Context(), alice, pusherOf("en"), pusher.RemoveOthers); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("got %v", err)
	}
	m.wantOneClaim(t)
}
