package pusher_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

const (
	alice mxid.UserID = "@alice:example.org"
	bob   mxid.UserID = "@bob:example.org"
	carol mxid.UserID = "@carol:example.org"
)

func claims(user mxid.UserID, others pusher.Others) func(*pusher.Entry) {
	return func(e *pusher.Entry) { e.Claim(user, others, 10) }
}

func releases(user mxid.UserID, number int64) func(*pusher.Entry) {
	return func(e *pusher.Entry) { e.Release(pusher.Holder{User: user, Number: number}) }
}

func TestAnEntryDecidesWhoHoldsThePushkey(t *testing.T) {
	t.Parallel()
	type all = []pusher.Holder
	for name, test := range map[string]struct {
		changes []func(*pusher.Entry)
		want    pusher.Entry
	}{
		"taken of nobody":      {steps(claims(alice, pusher.RemoveOthers)), pusher.Entry{Taken: 10, Holders: all{{alice, 10}}}},
		"appended":             {steps(claims(alice, pusher.KeepOthers)), pusher.Entry{Holders: all{{alice, 10}}}},
		"imported":             {steps(claims(alice, pusher.Imported)), pusher.Entry{Holders: all{{alice, 10}}}},
		"shared":               {steps(claims(alice, pusher.RemoveOthers), claims(bob, pusher.KeepOthers)), pusher.Entry{Taken: 10, Holders: all{{alice, 10}, {bob, 11}}}},
		"taken of two":         {steps(claims(alice, pusher.KeepOthers), claims(bob, pusher.KeepOthers), claims(carol, pusher.RemoveOthers)), pusher.Entry{Taken: 12, Holders: all{{carol, 12}}, Losers: all{{alice, 10}, {bob, 11}}}},
		"taken back":           {steps(claims(alice, pusher.RemoveOthers), claims(bob, pusher.RemoveOthers), claims(alice, pusher.RemoveOthers)), pusher.Entry{Taken: 12, Holders: all{{alice, 12}}, Losers: all{{bob, 11}}}},
		"taken by a sharer":    {steps(claims(alice, pusher.KeepOthers), claims(alice, pusher.RemoveOthers)), pusher.Entry{Taken: 11, Holders: all{{alice, 11}}}},
		"released":             {steps(claims(alice, pusher.RemoveOthers), releases(alice, 10)), pusher.Entry{Taken: 10, Losers: all{{alice, 10}}}},
		"another number":       {steps(claims(alice, pusher.RemoveOthers), releases(alice, 9)), pusher.Entry{Taken: 10, Holders: all{{alice, 10}}}},
		"another user":         {steps(claims(alice, pusher.RemoveOthers), releases(bob, 10)), pusher.Entry{Taken: 10, Holders: all{{alice, 10}}}},
		"forgotten":            {steps(claims(alice, pusher.RemoveOthers), releases(alice, 10), func(e *pusher.Entry) { e.Forget(e.Losers) }), pusher.Entry{Taken: 10}},
		"restored":             {steps(claims(alice, pusher.RemoveOthers), releases(alice, 10), func(e *pusher.Entry) { e.Restore(pusher.Holder{User: alice, Number: 10}) }), pusher.Entry{Taken: 10, Holders: all{{alice, 10}}}},
		"restored too late":    {steps(claims(alice, pusher.RemoveOthers), releases(alice, 10), claims(bob, pusher.RemoveOthers), func(e *pusher.Entry) { e.Restore(pusher.Holder{User: alice, Number: 10}) }), pusher.Entry{Taken: 11, Holders: all{{bob, 11}}, Losers: all{{alice, 10}}}},
		"a user less":          {steps(claims(alice, pusher.KeepOthers), claims(bob, pusher.RemoveOthers), func(e *pusher.Entry) { e.Remove(alice) }), pusher.Entry{Taken: 11, Holders: all{{bob, 11}}}},
		"imported, half taken": {steps(claims(alice, pusher.RemoveOthers), releases(alice, 10), claims(bob, pusher.Imported)), pusher.Entry{Taken: 11, Holders: all{{bob, 12}}, Losers: all{{alice, 10}}}},
		"recorded":             {steps(claims(alice, pusher.KeepOthers), func(e *pusher.Entry) { e.Record(pusher.Holder{User: bob, Number: 3}) }), pusher.Entry{Holders: all{{alice, 10}, {bob, 3}}}},
		"recorded as taken":    {steps(claims(alice, pusher.RemoveOthers), func(e *pusher.Entry) { e.Record(pusher.Holder{User: bob, Number: 3}) }), pusher.Entry{Taken: 10, Holders: all{{alice, 10}}, Losers: all{{bob, 3}}}},
		"known already":        {steps(claims(alice, pusher.KeepOthers), func(e *pusher.Entry) { e.Record(pusher.Holder{User: alice, Number: 3}) }), pusher.Entry{Holders: all{{alice, 10}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var e pusher.Entry
			for _, change := range test.changes {
				before, copied := e, clone(e)
				if change(&e); !before.Equal(copied) {
					t.Errorf("a copy has changed to %+v", before)
				}
			}
			if !e.Equal(test.want) {
				t.Errorf("got %+v, want %+v", e, test.want)
			}
		})
	}
}

func steps(changes ...func(*pusher.Entry)) []func(*pusher.Entry) { return changes }

func clone(e pusher.Entry) pusher.Entry {
	return pusher.Entry{Taken: e.Taken, Holders: slices.Clone(e.Holders), Losers: slices.Clone(e.Losers)}
}

func TestAPusherIsVisibleUnlessItsPushkeyWasTakenSince(t *testing.T) {
	t.Parallel()
	e := pusher.Entry{Taken: 10, Holders: []pusher.Holder{{User: alice, Number: 12}}, Losers: []pusher.Holder{{User: bob, Number: 9}}}
	for _, test := range []struct {
		user  mxid.UserID
		claim int64
		want  bool
	}{{alice, 12, true}, {alice, 3, true}, {bob, 9, false}, {bob, 0, false}, {bob, 10, true}, {carol, 9, false}, {carol, 11, true}} {
		if got := e.Shows(test.user, test.claim); got != test.want {
			t.Errorf("%s with claim %d: visible %t", test.user, test.claim, got)
		}
	}
	var none pusher.Entry
	if !none.Shows(alice, 0) || none.Number(alice) != 0 || none.Knows(alice) || !none.IsOver() {
		t.Error("without an entry, a pusher is not visible")
	}
}

func TestOnlyASetThatChangesNothingForOthersKeepsTheEntry(t *testing.T) {
	t.Parallel()
	taker, sharer := pusher.Holder{User: alice, Number: 10}, pusher.Holder{User: bob, Number: 11}
	for name, test := range map[string]struct {
		entry         pusher.Entry
		takes, shares bool // for alice
	}{
		"nobody's":             {pusher.Entry{}, false, false},
		"the taker's":          {pusher.Entry{Taken: 10, Holders: []pusher.Holder{taker}}, true, true},
		"of one who shared it": {pusher.Entry{Taken: 9, Holders: []pusher.Holder{taker}}, false, true},
		"shared":               {pusher.Entry{Taken: 10, Holders: []pusher.Holder{taker, sharer}}, false, true},
		"another's":            {pusher.Entry{Taken: 11, Holders: []pusher.Holder{sharer}, Losers: []pusher.Holder{taker}}, false, false},
		"beside a lost one":    {pusher.Entry{Taken: 10, Holders: []pusher.Holder{taker}, Losers: []pusher.Holder{{User: bob, Number: 9}}}, true, true},
		"beside one half gone": {pusher.Entry{Taken: 10, Holders: []pusher.Holder{taker}, Losers: []pusher.Holder{sharer}}, false, true},
	} {
		if takes, shares := test.entry.Keeps(alice, pusher.RemoveOthers), test.entry.Keeps(alice, pusher.KeepOthers); takes != test.takes || shares != test.shares {
			t.Errorf("%s: taking keeps it %t, sharing %t", name, takes, shares)
		}
	}
}

func TestAnImportIsRefusedWhileAnotherHolderHasTakenThePushkey(t *testing.T) {
	t.Parallel()
	e := pusher.Entry{Taken: 10, Holders: []pusher.Holder{{User: alice, Number: 10}, {User: bob, Number: 11}}}
	if !e.IsTakenFrom(bob) || !e.IsTakenFrom(carol) || e.IsTakenFrom(alice) {
		t.Error("alice has taken it")
	}
	e.Release(pusher.Holder{User: alice, Number: 10})
	if e.IsTakenFrom(carol) {
		t.Error("alice holds it no longer")
	}
}

func TestNumbersGrowEvenWhenTheClockGoesBack(t *testing.T) {
	t.Parallel()
	var e pusher.Entry
	last := int64(0)
	for i, now := range []int64{100, 100, 50, 200, 0} {
		others := []pusher.Others{pusher.RemoveOthers, pusher.KeepOthers}[i%2]
		number := e.Claim([]mxid.UserID{alice, bob, carol}[i%3], others, now)
		if number <= last || number < now || e.Last() != number {
			t.Errorf("claim %d: number %d after %d, the last is %d", i, number, last, e.Last())
		}
		last = number
	}
}

func TestAPushkeyIsSharedByAtMostSoManyUsers(t *testing.T) {
	t.Parallel()
	policy := pusher.DefaultPolicy()
	policy.MaxSharers = 2
	var before pusher.Entry
	for _, user := range []mxid.UserID{alice, bob, carol} {
		after := before
		after.Claim(user, pusher.KeepOthers, 1)
		if err := policy.CheckSharing(before, after); (fault.KindOf(err) == fault.InvalidParam) != (user == carol) || err != nil && user != carol {
			t.Errorf("%s: got %v", user, err)
		}
		before = after
	}
	again := before
	again.Claim(alice, pusher.KeepOthers, 1)
	if err := policy.CheckSharing(before, again); err != nil {
		t.Errorf("no more users than before: %v", err)
	}
}

func TestDigestsOfDifferentKeysDiffer(t *testing.T) {
	seen := map[pusher.Digest]pusher.Key{}
	for _, key := range []pusher.Key{
		{}, {AppID: "a"}, {Pushkey: "a"}, {AppID: "a", Pushkey: "b"}, {AppID: "ab"}, {AppID: `a","b`}, {AppID: "a", Pushkey: "B"}, {AppID: "a", Pushkey: "b "},
	} {
		digest := key.Digest()
		if other, found := seen[digest]; found || digest != key.Digest() || len(digest) != 43 {
			t.Errorf("%+v and %+v have the digest %q", key, other, digest)
		}
		seen[digest] = key
	}
}

func TestClaimIsStoredButNotShown(t *testing.T) {
	p := phone("key")
	shown := string(p.AppendJSON(nil))
	for _, claim := range []int64{0, 1, 1 << 62, 7} {
		p.Claim = claim
		if got := string(p.AppendJSON(nil)); got != shown {
			t.Errorf("shown as %s", got)
		}
		if got, err := pusher.ReadStored(string(p.AppendStored(nil))); err != nil || !reflect.DeepEqual(got, p) {
			t.Errorf("read back as %+v, %v, want %+v", got.Claim, err, claim)
		}
	}
}

func TestClientsCannotSetMembersOfTheServer(t *testing.T) {
	for _, name := range []string{"claim", "created", "device_id"} {
		for _, value := range []string{`{"number":9,"removes":9}`, `9`, `"x"`, `null`, `[]`} {
			all := members()
			all[name] = value
			change, err := read(object(all))
			if err != nil || !reflect.DeepEqual(*change.Pusher, phone("key")) {
				t.Errorf("%s as %s: got %+v, %v", name, value, change.Pusher, err)
			}
		}
	}
}

func TestUnreadableClaimIsADatabaseError(t *testing.T) {
	for value, want := range map[string]string{
		`{}`:                        "Missing parameters: claim.number, claim.set_at",
		`{"number":1}`:              "Missing parameter: claim.set_at",
		`null`:                      "claim must be an object",
		`{"number":"1","set_at":0}`: "claim.number must be an integer",
		`{"number":1,"set_at":""}`:  "claim.set_at must be an integer",
	} {
		all := members()
		all["claim"] = value
		_, err := pusher.ReadStored(object(all))
		if got := describe(pusher.Unreadable(err)); got != "database: Invalid pusher in database: "+want {
			t.Errorf("%s: got %s", value, got)
		}
	}
}
