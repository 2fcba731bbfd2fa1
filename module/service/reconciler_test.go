package service_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/service"
)

// The clock that numbered the claim may be wrong.
func TestAClaimIsAbandonedTenMinutesAfterItWasSeenWithoutAPusher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, key := newMemory(), thePushkey.Digest()
		reconciler := service.New(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, service.Options{}).Host(nil)
		reconcile := func(want ...mxid.UserID) {
			t.Helper()
			if err := reconciler.ReconcilePushkeys(t.Context()); err != nil {
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
		m.Pending[key] = 1
		reconcile(alice, bob)
		time.Sleep(9 * time.Minute)
		reconcile(alice, bob)

		// A late pusher keeps its claim.
		claims := m.Claims[key]
		withPusher(t, m, bob, pusher.KeepOthers.Claim(claims.Newest()))
		time.Sleep(time.Minute)
		reconcile(bob)
		if len(m.Pending) != 0 {
			t.Error("the key is still to be reconciled")
		}
	})
}

// The age starts again after the claim had a pusher, or was not pending.
func TestTheReconcilerForgetsSinceWhenAClaimHadNoPusher(t *testing.T) {
	for name, between := range map[string]func(t *testing.T, m *memory, reconcile func()){
		"it had a pusher": func(t *testing.T, m *memory, reconcile func()) {
			withPusher(t, m, alice, pusher.KeepOthers.Claim(5))
			reconcile()
			m.Lists, m.Pending[thePushkey.Digest()] = map[mxid.UserID]pusher.List{}, 5
		},
		"it was not pending": func(t *testing.T, m *memory, reconcile func()) {
			delete(m.Pending, thePushkey.Digest())
			reconcile()
			m.Pending[thePushkey.Digest()] = 5
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, key := newMemory(), thePushkey.Digest()
				m.Claims[key], m.Pending[key] = pusher.NewClaims(pusher.Owner{User: alice, Claim: 5}), 5
				reconciler := service.New(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, service.Options{}).Host(nil)
				reconcile := func() {
					if err := reconciler.ReconcilePushkeys(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				reconcile()
				time.Sleep(9 * time.Minute)
				between(t, m, reconcile)
				reconcile()
				time.Sleep(9 * time.Minute)
				reconcile()
				if !slices.Equal(m.claimants(), []mxid.UserID{alice}) {
					t.Error("the claim was taken back")
				}
				time.Sleep(time.Minute)
				reconcile()
				if len(m.claimants()) != 0 {
					t.Error("the claim is still there")
				}
			})
		})
	}
}
