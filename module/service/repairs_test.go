package service_test

import (
	"slices"
	"testing"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/service"
)

func TestAPusherThatIsMissingInTheIndexIsRecorded(t *testing.T) {
	t.Parallel()
	many := func(named ...mxid.UserID) pusher.Entry {
		e := pusher.Entry{Last: 9, Users: named}
		for len(e.Users) < pusher.MaxUsers {
			e.Users = append(e.Users, "@another:example.org")
		}
		return e
	}
	for name, test := range map[string]struct {
		kind    pusher.Kind
		claim   int64
		entry   pusher.Entry
		missing bool
		owners  []mxid.UserID // carol has a pusher with claim 7
	}{
		"a pusher without a number":      {pusher.HTTP, 0, pusher.Entry{Last: 7, Taken: 7, By: carol, Users: []mxid.UserID{carol}}, true, []mxid.UserID{bob, carol}},
		"without an entry":               {pusher.HTTP, 0, pusher.Entry{}, true, []mxid.UserID{bob, carol}},
		"a pusher with a number":         {pusher.HTTP, 5, pusher.Entry{}, false, []mxid.UserID{bob, carol}},
		"one that carol has taken":       {pusher.HTTP, 5, pusher.Entry{Last: 7, Taken: 7, By: carol}, false, []mxid.UserID{carol}},
		"an address that has no entry":   {pusher.Email, 5, pusher.Entry{}, true, []mxid.UserID{bob, carol}},
		"an address of another":          {pusher.Email, 5, pusher.Entry{Last: 7, Users: []mxid.UserID{carol}, Address: true}, true, []mxid.UserID{bob, carol}},
		"an address that names its user": {pusher.Email, 5, pusher.Entry{Last: 7, Users: []mxid.UserID{carol, bob}, Address: true}, false, []mxid.UserID{bob, carol}},
		"an address of many":             {pusher.Email, 5, many(), false, []mxid.UserID{bob, carol}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, p, hers := newMemory(), pusherOf("en"), pusherOf("en")
			p.Kind, p.Claim, hers.Claim = test.kind, test.claim, 7
			m.Lists[bob], m.Lists[carol] = pusher.NewList(p), pusher.NewList(hers)
			m.Entries[thePushkey.Digest()] = test.entry
			repairs := service.NewRepairs(module.Stores{Pushers: m, Pushkeys: m.index()})
			for range 2 { // the second time, the pusher is another by now
				if err := repairs.Record(t.Context(), bob, p); err != nil {
					t.Fatal(err)
				}
			}
			list, entry := m.Lists[bob], m.Entries[thePushkey.Digest()]
			held, _ := list.Pusher(thePushkey)
			if service.IsMissing(bob, p, test.entry) != test.missing || service.IsMissing(bob, held, entry) || held.Claim == 0 || test.claim > 0 && held.Claim != test.claim {
				t.Errorf("got claim %d of %+v", held.Claim, entry)
			}
			if got := m.owners(thePushkey); !slices.Equal(got, test.owners) || entry.Address != (test.kind == pusher.Email && test.missing || test.entry.Address) {
				t.Errorf("owned by %v, the entry is %+v", got, entry)
			}
		})
	}
}
