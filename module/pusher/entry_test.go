package pusher_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

const (
	alice mxid.UserID = "@alice:example.org"
	bob   mxid.UserID = "@bob:example.org"
	carol mxid.UserID = "@carol:example.org"
)

// later is when every set of the tests, at 10 to 12 microseconds, has ended.
const later = 12 + 60_000_000

func claims(user mxid.UserID, others pusher.Others) func(*pusher.Entry) {
	return func(e *pusher.Entry) { e.Claim(user, others, 10) }
}

func leaves(user mxid.UserID, claim int64) func(*pusher.Entry) {
	return func(e *pusher.Entry) { e.Leave(user, claim, later) }
}

func TestAnEntryKnowsTheLastSetThatTookThePushkey(t *testing.T) {
	t.Parallel()
	type users = []mxid.UserID
	takes, shares := pusher.RemoveOthers, pusher.KeepOthers
	for name, test := range map[string]struct {
		changes []func(*pusher.Entry)
		want    pusher.Entry
	}{
		"taken from nobody":        {steps(claims(alice, takes)), pusher.Entry{Last: 10, Taken: 10, By: alice, Users: users{alice}}},
		"appended":                 {steps(claims(alice, shares)), pusher.Entry{Last: 10, Users: users{alice}}},
		"imported":                 {steps(claims(alice, pusher.Imported)), pusher.Entry{Last: 10, Users: users{alice}}},
		"shared":                   {steps(claims(alice, takes), claims(bob, shares)), pusher.Entry{Last: 11, Taken: 10, By: alice, Users: users{bob, alice}}},
		"shared again":             {steps(claims(alice, takes), claims(bob, shares), claims(alice, shares)), pusher.Entry{Last: 12, Taken: 10, By: alice, Users: users{alice, bob}}},
		"taken from two":           {steps(claims(alice, shares), claims(bob, shares), claims(carol, takes)), pusher.Entry{Last: 12, Taken: 12, By: carol, Users: users{carol}}},
		"left":                     {steps(claims(alice, takes), leaves(alice, 10)), pusher.Entry{Last: 10, Taken: 10}},
		"left by a sharer":         {steps(claims(alice, takes), claims(bob, shares), leaves(bob, 11)), pusher.Entry{Last: 11, Taken: 10, By: alice, Users: users{alice}}},
		"left after a later share": {steps(claims(alice, takes), claims(alice, shares), leaves(alice, 11)), pusher.Entry{Last: 11, Taken: 10}},
		"left by the old pusher":   {steps(claims(alice, takes), claims(alice, takes), leaves(alice, 10)), pusher.Entry{Last: 11, Taken: 11, By: alice}},
		"forgotten at once":        {steps(claims(alice, takes), func(e *pusher.Entry) { e.Forget(alice) }), pusher.Entry{Last: 10, Taken: 10}},
		"left by a stranger":       {steps(claims(alice, takes), leaves(bob, 10)), pusher.Entry{Last: 10, Taken: 10, By: alice, Users: users{alice}}},
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
	e.Users = slices.Clone(e.Users)
	return e
}

func TestAPusherIsVisibleUnlessItsPushkeyWasTakenSince(t *testing.T) {
	t.Parallel()
	e := pusher.Entry{Last: 12, Taken: 10, By: alice}
	for _, test := range []struct {
		user  mxid.UserID
		claim int64
		want  bool
	}{{alice, 12, true}, {alice, 3, true}, {bob, 9, false}, {bob, 0, false}, {bob, 10, true}, {carol, 11, true}} {
		if got := e.Shows(test.user, test.claim); got != test.want {
			t.Errorf("%s with claim %d: visible %t", test.user, test.claim, got)
		}
	}
	e.Leave(alice, 12, later)
	var none pusher.Entry
	if e.Shows(alice, 3) || !none.Shows(alice, 0) {
		t.Error("a pusher is visible after its user has left, or not without an entry")
	}
}

func TestOnlyASetThatChangesNothingForOthersKeepsItsNumber(t *testing.T) {
	t.Parallel()
	const days = int64(24 * time.Hour / time.Microsecond)
	for name, test := range map[string]struct {
		entry         pusher.Entry
		claim         int64 // of alice, in days; today is the day 40
		takes, shares bool
	}{
		"without an entry":    {pusher.Entry{}, 39, false, false},
		"alone":               {pusher.Entry{Last: 39, Taken: 39, By: alice}, 39, true, true},
		"old":                 {pusher.Entry{Last: 10, Taken: 10, By: alice}, 10, false, false},
		"never taken":         {pusher.Entry{Last: 39}, 39, false, true},
		"shared since":        {pusher.Entry{Last: 39, Taken: 38, By: alice}, 38, false, true},
		"shared with another": {pusher.Entry{Last: 39, Taken: 38, By: bob}, 39, false, true},
		"taken by another":    {pusher.Entry{Last: 39, Taken: 39, By: bob}, 38, false, false},
		"taken, not stored":   {pusher.Entry{Last: 39, Taken: 39, By: alice}, 38, false, false},
		"the taker has left":  {pusher.Entry{Last: 39, Taken: 39}, 39, false, true},
		"the entry is behind": {pusher.Entry{Last: 38}, 39, false, false},
	} {
		e := test.entry
		e.Last, e.Taken = e.Last*days, e.Taken*days
		takes, shares := e.Keeps(alice, test.claim*days, pusher.RemoveOthers, 40*days), e.Keeps(alice, test.claim*days, pusher.KeepOthers, 40*days)
		if takes != test.takes || shares != test.shares {
			t.Errorf("%s: taking keeps it %t, sharing %t", name, takes, shares)
		}
	}
}

func TestAnImportIsRefusedUntilTheTakerHasLeft(t *testing.T) {
	t.Parallel()
	var e pusher.Entry
	isTakenFromBob := func() bool { return e.IsTakenFrom(bob) }
	if isTakenFromBob() {
		t.Error("nobody has taken it")
	}
	if e.Claim(alice, pusher.RemoveOthers, 10); !isTakenFromBob() || e.IsTakenFrom(alice) {
		t.Error("alice has taken it")
	}
	if e.Leave(alice, 10, later); isTakenFromBob() {
		t.Error("alice has left")
	}
}

func TestATakerIsNotForgottenForManySharers(t *testing.T) {
	t.Parallel()
	var e pusher.Entry
	e.Claim(alice, pusher.RemoveOthers, 10)
	for i := range pusher.MaxUsers + 2 {
		e.Claim(mxid.UserID(fmt.Sprint(i)), pusher.KeepOthers, 10)
	}
	if !e.IsTakenFrom(bob) || len(e.Users) != pusher.MaxUsers {
		t.Errorf("named are %v", e.Users)
	}
	if e.Leave(alice, e.Last, 11); e.IsTakenFrom(bob) || !e.Shows(alice, 1) {
		t.Error("alice has left at once")
	}
}

// A set of the user that began before the take may store its pusher after the delete.
func TestATakerWhoLeavesAtOnceIsNotNamed(t *testing.T) {
	t.Parallel()
	var e pusher.Entry
	e.Claim(alice, pusher.RemoveOthers, 10)
	if e.Leave(alice, 10, later-3); e.By == alice || e.By == "" || !e.Shows(alice, 9) || e.Shows(bob, 9) || e.IsTakenFrom(bob) {
		t.Errorf("got %+v", e)
	}
	if e.Claim(bob, pusher.RemoveOthers, 10); e.By != bob || e.Shows(alice, 10) {
		t.Errorf("taken by another: got %+v", e)
	}
}

func TestOnlyTheEntryOfAnAddressWithUsersLasts(t *testing.T) {
	t.Parallel()
	var e pusher.Entry
	for _, address := range []bool{false, true} {
		e.Address = address
		if e.Lasts() {
			t.Error("an entry without users lasts")
		}
		if e.Claim(alice, pusher.KeepOthers, 10); e.Lasts() != address {
			t.Errorf("address %t: lasts %t", address, e.Lasts())
		}
		e.Forget(alice)
	}
}

func TestNumbersGrowEvenWhenTheClockGoesBack(t *testing.T) {
	t.Parallel()
	var e pusher.Entry
	last := int64(0)
	for i, now := range []int64{100, 100, 50, 200, 0} {
		others := []pusher.Others{pusher.RemoveOthers, pusher.KeepOthers}[i%2]
		number := e.Claim([]mxid.UserID{alice, bob, carol}[i%3], others, now)
		if number <= last || number < now || e.Last != number {
			t.Errorf("claim %d: number %d after %d, the last is %d", i, number, last, e.Last)
		}
		last = number
	}
}

func TestAnEntryNamesTheNewestUsersAndTellsThem(t *testing.T) {
	t.Parallel()
	var e pusher.Entry
	for i := range pusher.MaxUsers + 2 {
		e.Claim(mxid.UserID(fmt.Sprint(i)), pusher.KeepOthers, 10)
	}
	e.Claim("5", pusher.KeepOthers, 10)
	const want = "[5 17 16 15 14 13 12 11 10 9 8 7 6 4 3 2]"
	next := e
	next.Claim("17", pusher.RemoveOthers, 10)
	if got, lost := fmt.Sprint(e.Users), fmt.Sprint(e.Lost(next)); got != want || lost != strings.Replace(want, "17 ", "", 1) {
		t.Errorf("named are %s, lost has %s", got, lost)
	}
	if shared := next; shared.Claim("1", pusher.KeepOthers, 10) > 0 && len(next.Lost(shared)) > 0 {
		t.Error("a share takes nothing")
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

func TestTheDigestOfAnAddressIgnoresTheCaseOfItsDomain(t *testing.T) {
	address, other := pusher.Key{AppID: pusher.EmailAppID, Pushkey: "a@Example.ORG"}, pusher.Key{AppID: pusher.EmailAppID, Pushkey: "A@example.org"}
	if digest := address.Canonical().Digest(); address.Digest() != digest || other.Digest() == digest {
		t.Errorf("got %s and %s, want %s", address.Digest(), other.Digest(), digest)
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
