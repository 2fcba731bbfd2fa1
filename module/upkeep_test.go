package module_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// withPusher stores a pusher of thePushkey with a claim, which the index is not
// told of.
func withPusher(t *testing.T, m *memory, user mxid.UserID, claim pusher.Claim) pusher.Pusher {
	t.Helper()
	p := pusher.Pusher{Key: thePushkey, Kind: pusher.HTTP, Claim: claim}
	if err := m.Update(t.Context(), user, func(list *pusher.List) error { list.Set(p); return nil }); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestALostClaimComesBack(t *testing.T) {
	t.Parallel()
	m, key := newMemory(), thePushkey.Digest()
	restore := func(user mxid.UserID, number int64, want error) {
		t.Helper()
		for range 2 {
			if err := module.RestoreClaim(t.Context(), m.index(), key, pusher.Owner{User: user, Claim: number}); !errors.Is(err, want) {
				t.Errorf("got %v, want %v", err, want)
			}
		}
	}
	restore(bob, 5, nil)
	if len(m.postponed) != 0 {
		t.Error("a key that nobody shares is to be settled")
	}
	restore(carol, 5, module.ErrClaimTaken)
	restore(carol, 7, nil)
	claims := m.claims[key]
	if got := claims.Owners(); !slices.Equal(got, []pusher.Owner{{User: bob, Claim: 5}, {User: carol, Claim: 7}}) {
		t.Errorf("got %v", got)
	}

	// The later claim, which removes others, wins.
	withPusher(t, m, bob, pusher.Claim{Number: 5, Removes: 5})
	withPusher(t, m, carol, pusher.Claim{Number: 7, Removes: 7})
	if err := module.SettlePushkeys(t.Context(), m, m.index()); err != nil {
		t.Fatal(err)
	}
	if owners := m.owners(thePushkey); !slices.Equal(owners, []mxid.UserID{carol}) || len(m.postponed) != 0 {
		t.Errorf("got %v, %v", owners, m.postponed)
	}
}

func TestAPusherWithoutAClaimGetsOne(t *testing.T) {
	t.Parallel()
	m := newMemory()
	withPusher(t, m, carol, pusher.Claim{Number: 7})
	if err := module.RestoreClaim(t.Context(), m.index(), thePushkey.Digest(), pusher.Owner{User: carol, Claim: 7}); err != nil {
		t.Fatal(err)
	}
	p := withPusher(t, m, bob, pusher.Claim{})
	for range 2 { // the second time, the pusher is another by now
		if err := module.GiveClaim(t.Context(), m, m.index(), bob, p); err != nil {
			t.Fatal(err)
		}
	}
	list := m.lists[bob]
	held, _ := list.Pusher(thePushkey)
	claims := m.claims[thePushkey.Digest()]
	if own, other := claims.Last(bob); own == 0 || own != held.Claim.Number || held.Claim.Removes != 0 || other != 7 || len(claims.Owners()) != 2 {
		t.Errorf("got %+v, %+v", held.Claim, claims.Owners())
	}
	if _, postponed := m.postponed[thePushkey.Digest()]; !postponed {
		t.Error("the key is shared, and is not to be settled")
	}
}

func TestFaultsOfAPushkey(t *testing.T) {
	t.Parallel()
	old, young := time.Now().Add(-time.Hour).UnixMicro(), time.Now().UnixMicro()
	claims := pusher.NewClaims(
		pusher.Owner{User: bob, Claim: old}, pusher.Owner{User: carol, Claim: old + 1},
		pusher.Owner{User: dave, Claim: old + 2}, pusher.Owner{User: dave, Claim: young})
	held := map[mxid.UserID]pusher.Pusher{
		bob:   {Key: thePushkey, Claim: pusher.Claim{Number: old}},
		carol: {Key: thePushkey, Claim: pusher.Claim{Number: old + 1, Removes: old + 1}},
	}
	got := module.FaultsOfPushkey(claims, held)
	if !slices.Equal(got.GivenUp, []pusher.Owner{{User: dave, Claim: old + 2}}) || !slices.Equal(got.TooMany, []pusher.Owner{{User: bob, Claim: old}}) {
		t.Errorf("got %+v", got)
	}

	m := newMemory()
	m.claims[thePushkey.Digest()] = claims
	if err := module.ReleaseClaims(t.Context(), m.index(), thePushkey.Digest(), got.GivenUp); err != nil {
		t.Fatal(err)
	}
	left := m.claims[thePushkey.Digest()]
	if faults := module.FaultsOfPushkey(left, held); len(faults.GivenUp) != 0 || len(left.Owners()) != 3 {
		t.Errorf("got %+v", left.Owners())
	}
}
