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

// withPusher stores a pusher without changing the entry of its pushkey.
func withPusher(t *testing.T, m *memory, user mxid.UserID, claim int64) pusher.Pusher {
	t.Helper()
	p := pusherOf("en")
	p.Claim = claim
	if err := m.Update(t.Context(), user, func(list *pusher.List) error { list.Set(p); return nil }); err != nil {
		t.Fatal(err)
	}
	return p
}

func (m *memory) repairs() *service.Repairs {
	return service.NewRepairs(module.Stores{Pushers: m, Pushkeys: m.index()})
}

func TestAPusherIsRecorded(t *testing.T) {
	t.Parallel()
	const number = 5
	holders := func(all ...pusher.Holder) []pusher.Holder { return all }
	bobs, carols := pusher.Holder{User: bob, Number: number}, pusher.Holder{User: carol, Number: 7}
	for name, test := range map[string]struct {
		before, want pusher.Entry
		visible      bool
	}{
		"without an entry":        {pusher.Entry{}, pusher.Entry{Holders: holders(bobs)}, true},
		"beside another":          {pusher.Entry{Taken: 3, Holders: holders(carols)}, pusher.Entry{Taken: 3, Holders: holders(carols, bobs)}, true},
		"taken since":             {pusher.Entry{Taken: 7, Holders: holders(carols)}, pusher.Entry{Taken: 7, Holders: holders(carols), Losers: holders(bobs)}, false},
		"known":                   {pusher.Entry{Taken: 5, Holders: holders(bobs)}, pusher.Entry{Taken: 5, Holders: holders(bobs)}, true},
		"known with another, too": {pusher.Entry{Taken: 9, Losers: holders(bobs)}, pusher.Entry{Taken: 9, Losers: holders(bobs)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMemory()
			p := withPusher(t, m, bob, number)
			m.Entries[thePushkey.Digest()] = test.before
			for range 2 {
				if err := m.repairs().Record(t.Context(), bob, p); err != nil {
					t.Fatal(err)
				}
			}
			if got := m.Entries[thePushkey.Digest()]; !got.Equal(test.want) || slices.Contains(m.owners(thePushkey), bob) != test.visible {
				t.Errorf("got %+v, owned by %v", got, m.owners(thePushkey))
			}
		})
	}
}

func TestAPusherWithoutANumberGetsOne(t *testing.T) {
	t.Parallel()
	m := newMemory()
	m.do(t, act{carol, takes})
	p := withPusher(t, m, bob, 0)
	for range 2 { // the second time, the pusher is another by now
		if err := m.repairs().Record(t.Context(), bob, p); err != nil {
			t.Fatal(err)
		}
	}
	list, entry := m.Lists[bob], m.Entries[thePushkey.Digest()]
	held, _ := list.Pusher(thePushkey)
	if own := entry.Number(bob); own <= entry.Taken || own != held.Claim || !slices.Equal(m.owners(thePushkey), []mxid.UserID{bob, carol}) {
		t.Errorf("got claim %d of %+v", held.Claim, entry)
	}
}

func TestUsersWithoutAPusherAreReleasedAfterTenMinutes(t *testing.T) {
	t.Parallel()
	old, young := time.Now().Add(-time.Hour).UnixMicro(), time.Now().UnixMicro()
	entry := pusher.Entry{
		Holders: []pusher.Holder{{User: alice, Number: old}, {User: bob, Number: old + 1}, {User: carol, Number: young}},
		Losers:  []pusher.Holder{{User: dave, Number: old}},
	}
	hasPusher := func(user mxid.UserID) bool { return user == alice }
	got := service.Unused(entry, hasPusher, time.Now())
	if want := []pusher.Holder{{User: bob, Number: old + 1}, {User: dave, Number: old}}; !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	m := newMemory()
	m.Entries[thePushkey.Digest()] = entry
	if err := m.repairs().Release(t.Context(), thePushkey.Digest(), got); err != nil {
		t.Fatal(err)
	}
	left := m.Entries[thePushkey.Digest()]
	if len(service.Unused(left, hasPusher, time.Now())) != 0 || len(left.Holders) != 2 || len(left.Losers) != 0 {
		t.Errorf("left is %+v", left)
	}
}
