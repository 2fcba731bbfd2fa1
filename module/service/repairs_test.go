package service_test

import (
	"slices"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/service"
)

// withPusher stores a pusher whose claim is missing in the index.
func withPusher(t *testing.T, m *memory, user mxid.UserID, claim pusher.Claim) pusher.Pusher {
	t.Helper()
	p := pusher.Pusher{Key: thePushkey, Kind: pusher.HTTP, Claim: claim}
	if err := m.Update(t.Context(), user, func(list *pusher.List) error { list.Set(p); return nil }); err != nil {
		t.Fatal(err)
	}
	return p
}

func (m *memory) repairs() *service.Repairs {
	return service.NewRepairs(module.Stores{Pushers: m, Pushkeys: m.index()})
}

func TestALostClaimComesBack(t *testing.T) {
	t.Parallel()
	m, key := newMemory(), thePushkey.Digest()
	record := func(p pusher.Pusher, user mxid.UserID) {
		t.Helper()
		for range 2 {
			if err := m.repairs().Record(t.Context(), user, p); err != nil {
				t.Fatal(err)
			}
		}
	}
	record(withPusher(t, m, bob, pusher.Claim{Number: 5, Removes: 5}), bob)
	if len(m.Pending) != 0 {
		t.Error("a key that nobody shares is to be reconciled")
	}
	record(withPusher(t, m, carol, pusher.Claim{Number: 7, Removes: 7}), carol)
	claims := m.Claims[key]
	if got := claims.Owners(); !slices.Equal(got, []pusher.Owner{{User: bob, Claim: 5}, {User: carol, Claim: 7}}) {
		t.Errorf("got %v", got)
	}

	// The later claim, which removes others, wins.
	if err := service.New(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, service.Options{}).Host(nil).ReconcilePushkeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	if owners := m.owners(thePushkey); !slices.Equal(owners, []mxid.UserID{carol}) || len(m.Pending) != 0 {
		t.Errorf("got %v, %v", owners, m.Pending)
	}
}

func TestAPusherWithoutAClaimGetsOne(t *testing.T) {
	t.Parallel()
	for name, claim := range map[string]pusher.Claim{"none": {}, "another's": {Number: 7}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testANewClaim(t, claim)
		})
	}
}

func testANewClaim(t *testing.T, claim pusher.Claim) {
	m := newMemory()
	if err := m.repairs().Record(t.Context(), carol, withPusher(t, m, carol, pusher.Claim{Number: 7})); err != nil {
		t.Fatal(err)
	}
	p := withPusher(t, m, bob, claim)
	for range 2 { // the second time, the pusher is another by now
		if err := m.repairs().Record(t.Context(), bob, p); err != nil {
			t.Fatal(err)
		}
	}
	list := m.Lists[bob]
	held, _ := list.Pusher(thePushkey)
	claims := m.Claims[thePushkey.Digest()]
	if own, other := claims.Last(bob); own <= 7 || own != held.Claim.Number || held.Claim.Removes != 0 || other != 7 || len(claims.Owners()) != 2 {
		t.Errorf("got %+v, %+v", held.Claim, claims.Owners())
	}
	if _, pending := m.Pending[thePushkey.Digest()]; !pending {
		t.Error("the key is shared, and is not to be reconciled")
	}
}

func TestProblemsOfAPushkey(t *testing.T) {
	t.Parallel()
	old, young := time.Now().Add(-time.Hour).UnixMicro(), time.Now().UnixMicro()
	claims := pusher.NewClaims(
		pusher.Owner{User: bob, Claim: old}, pusher.Owner{User: carol, Claim: old + 1},
		pusher.Owner{User: dave, Claim: old + 2}, pusher.Owner{User: dave, Claim: young})
	held := map[mxid.UserID]pusher.Pusher{
		bob:   {Key: thePushkey, Claim: pusher.Claim{Number: old}},
		carol: {Key: thePushkey, Claim: pusher.Claim{Number: old + 1, Removes: old + 1}},
	}
	got := service.ProblemsOfPushkey(claims, held, time.Now())
	if !slices.Equal(got.Abandoned, []pusher.Owner{{User: dave, Claim: old + 2}}) || !slices.Equal(got.TooMany, []pusher.Owner{{User: bob, Claim: old}}) {
		t.Errorf("got %+v", got)
	}

	m := newMemory()
	m.Claims[thePushkey.Digest()] = claims
	if err := m.repairs().Release(t.Context(), thePushkey.Digest(), got.Abandoned); err != nil {
		t.Fatal(err)
	}
	left := m.Claims[thePushkey.Digest()]
	if problems := service.ProblemsOfPushkey(left, held, time.Now()); len(problems.Abandoned) != 0 || len(left.Owners()) != 3 {
		t.Errorf("got %+v", left.Owners())
	}
}
