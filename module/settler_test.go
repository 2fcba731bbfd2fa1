package module_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// How old a claim is that has no pusher, a settler knows from having seen it: its
// number is the time by a clock that nobody knows.
func TestAClaimIsGivenUpTenMinutesAfterItWasSeenWithoutAPusher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, key := newMemory(), thePushkey.Digest()
		settler := module.NewService(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, module.Options{}).Host(nil)
		settle := func(want ...mxid.UserID) {
			t.Helper()
			if err := settler.SettlePushkeys(t.Context()); err != nil {
				t.Fatal(err)
			}
			claims := m.Claims[key]
			if got := claims.Users(); !slices.Equal(got, want) {
				t.Errorf("claimed by %v, want %v", got, want)
			}
		}
		for _, claim := range []pusher.Owner{
			{User: alice, Claim: time.Now().Add(-24 * time.Hour).UnixMicro()}, {User: bob, Claim: time.Now().Add(24 * time.Hour).UnixMicro()},
		} {
			claims := m.Claims[key]
			claims.Restore(claim)
			m.Claims[key] = claims
		}
		m.Postponed[key] = 1
		settle(alice, bob)
		time.Sleep(9 * time.Minute)
		settle(alice, bob)

		// A pusher that comes late keeps its claim.
		claims := m.Claims[key]
		withPusher(t, m, bob, pusher.KeepOthers.Claim(claims.Newest()))
		time.Sleep(time.Minute)
		settle(bob)
		if len(m.Postponed) != 0 {
			t.Error("the key is still to be settled")
		}
	})
}

// A claim that had a pusher in between, or that was not to be settled, is a new
// one to the settler.
func TestASettlerForgetsSinceWhenAClaimHadNoPusher(t *testing.T) {
	for name, between := range map[string]func(t *testing.T, m *memory, settle func()){
		"it had a pusher": func(t *testing.T, m *memory, settle func()) {
			withPusher(t, m, alice, pusher.KeepOthers.Claim(5))
			settle()
			m.Lists, m.Postponed[thePushkey.Digest()] = map[mxid.UserID]pusher.List{}, 5
		},
		"it was not to be settled": func(t *testing.T, m *memory, settle func()) {
			delete(m.Postponed, thePushkey.Digest())
			settle()
			m.Postponed[thePushkey.Digest()] = 5
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, key := newMemory(), thePushkey.Digest()
				m.Claims[key], m.Postponed[key] = pusher.NewClaims(pusher.Owner{User: alice, Claim: 5}), 5
				settler := module.NewService(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, module.Options{}).Host(nil)
				settle := func() {
					if err := settler.SettlePushkeys(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				settle()
				time.Sleep(9 * time.Minute)
				between(t, m, settle)
				settle()
				time.Sleep(9 * time.Minute)
				settle()
				if !slices.Equal(m.claimants(), []mxid.UserID{alice}) {
					t.Error("the claim was taken back")
				}
				time.Sleep(time.Minute)
				settle()
				if len(m.claimants()) != 0 {
					t.Error("the claim is still there")
				}
			})
		})
	}
}
