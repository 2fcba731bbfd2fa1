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

func TestClaimsGrowEvenWhenTheClockGoesBack(t *testing.T) {
	var claims pusher.Claims
	for i, step := range []struct {
		user mxid.UserID
		now  int64
		want int64
	}{
		{alice, 0, 1}, {bob, 1000, 1000}, {carol, 1000, 1001}, {alice, 5, 1002}, {alice, 2000, 2000}, {bob, -1, 2001},
	} {
		if got := claims.Add(step.user, step.now); got != step.want {
			t.Errorf("claim %d: got number %d, want %d", i, got, step.want)
		}
	}
	want := []mxid.UserID{alice, bob, carol}
	if got := slices.Sorted(slices.Values(claims.Users())); !slices.Equal(got, want) {
		t.Errorf("claimed by %v, want %v", got, want)
	}
	if all := claims.Owners(); len(all) != 6 {
		t.Errorf("got %v, want all six claims", all)
	}
}

func TestReleaseRemovesOnlyItsClaim(t *testing.T) {
	first, second, third := pusher.Owner{User: alice, Claim: 1}, pusher.Owner{User: bob, Claim: 2}, pusher.Owner{User: alice, Claim: 3}
	for name, test := range map[string]struct {
		released pusher.Owner
		want     []pusher.Owner
	}{
		"the user's earlier claim":   {first, []pusher.Owner{second, third}},
		"the user's last claim":      {third, []pusher.Owner{first, second}},
		"another user's claim":       {second, []pusher.Owner{first, third}},
		"the number of another user": {pusher.Owner{User: alice, Claim: 2}, []pusher.Owner{first, second, third}},
		"a user without claims":      {pusher.Owner{User: carol, Claim: 1}, []pusher.Owner{first, second, third}},
		"no claim":                   {pusher.Owner{}, []pusher.Owner{first, second, third}},
	} {
		t.Run(name, func(t *testing.T) {
			claims := pusher.NewClaims(first, second, third)
			for range 2 {
				claims.Release(test.released)
			}
			if got := claims.Owners(); !slices.Equal(got, test.want) {
				t.Errorf("left are %v, want %v", got, test.want)
			}
		})
	}
}

func TestCopiesOfClaimsAreIndependent(t *testing.T) {
	given := []pusher.Owner{{User: alice, Claim: 1}}
	claims := pusher.NewClaims(given...)
	given[0].User = carol
	for i := range 20 { // some slices have spare capacity
		checkCopies(t, claims)
		claims.Add(bob, int64(i))
	}
}

func checkCopies(t *testing.T, claims pusher.Claims) {
	t.Helper()
	want := slices.Clone(claims.Owners())
	for name, change := range map[string]func(*pusher.Claims){
		"Add":               func(c *pusher.Claims) { c.Add(carol, 100) },
		"Release, then Add": func(c *pusher.Claims) { c.Release(want[0]); c.Add(carol, 100) },
	} {
		one, other := claims, claims
		other.Add(bob, 100)
		change(&one)
		if got := claims.Owners(); !slices.Equal(got, want) {
			t.Errorf("%s: the original has changed to %v", name, got)
		}
		if got := other.Owners(); !slices.Equal(got, append(slices.Clip(want), pusher.Owner{User: bob, Claim: 100})) {
			t.Errorf("%s: another copy has changed to %v", name, got)
		}
	}
}

func TestLastReturnsTheLastClaimsOfAUserAndOfOthers(t *testing.T) {
	claims := pusher.NewClaims(pusher.Owner{User: bob, Claim: 5}, pusher.Owner{User: alice, Claim: 4}, pusher.Owner{User: alice, Claim: 2})
	for user, want := range map[mxid.UserID][2]int64{alice: {4, 5}, bob: {5, 4}, carol: {0, 5}} {
		if own, others := claims.Last(user); [2]int64{own, others} != want {
			t.Errorf("%s: got %d, %d, want %v", user, own, others, want)
		}
	}
	if own, others := new(pusher.Claims).Last(alice); own != 0 || others != 0 {
		t.Errorf("no claims: got %d, %d", own, others)
	}
}

func TestPusherSetTwiceHasBothClaims(t *testing.T) {
	takes, keeps := pusher.RemoveOthers.Claim, pusher.KeepOthers.Claim
	for name, test := range map[string]struct {
		first, second, want pusher.Claim
		spare               int64
	}{
		"no claim before":           {pusher.Claim{}, takes(7), pusher.Claim{Number: 7, Removes: 7}, 0},
		"no claim before, appended": {pusher.Claim{}, keeps(7), pusher.Claim{Number: 7}, 0},
		"taken, then appended":      {takes(7), keeps(9), pusher.Claim{Number: 9, Removes: 7}, 7},
		"appended, then taken":      {keeps(7), takes(9), pusher.Claim{Number: 9, Removes: 9}, 7},
		"taken twice":               {takes(7), takes(9), pusher.Claim{Number: 9, Removes: 9}, 7},
		"appended twice":            {keeps(7), keeps(9), pusher.Claim{Number: 9}, 7},
	} {
		for _, order := range [][2]pusher.Claim{{test.first, test.second}, {test.second, test.first}} {
			if got, spare := order[0].Join(order[1]); got != test.want || spare != test.spare {
				t.Errorf("%s: got %+v, spare %d, want %+v, %d", name, got, spare, test.want, test.spare)
			}
		}
	}
}

func TestCheckSharingRefusesGrowthOverTheLimit(t *testing.T) {
	policy := pusher.DefaultPolicy()
	policy.MaxSharers = 2
	claims := pusher.NewClaims(pusher.Owner{User: alice, Claim: 1}, pusher.Owner{User: bob, Claim: 2}, pusher.Owner{User: alice, Claim: 3})
	if err := policy.CheckSharing(1, &claims); err != nil {
		t.Errorf("two users with three claims: %v", err)
	}
	claims.Add(carol, 4)
	if err := policy.CheckSharing(3, &claims); err != nil {
		t.Errorf("three users as before: %v", err)
	}
	if err := policy.CheckSharing(2, &claims); fault.KindOf(err) != fault.InvalidParam {
		t.Errorf("one user too many: got error %v", err)
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
	for _, claim := range []pusher.Claim{{}, {Number: 1}, {Number: 1 << 62, Removes: 1 << 61}, {Number: 7, Removes: 7}} {
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
		`{}`:                            "Missing parameters: claim.number, claim.removes, claim.set_at",
		`{"number":1}`:                  "Missing parameters: claim.removes, claim.set_at",
		`null`:                          "claim must be an object",
		`{"number":"1","removes":0}`:    "claim.number must be an integer",
		`{"number":1,"removes":"keep"}`: "claim.removes must be an integer",
	} {
		all := members()
		all["claim"] = value
		_, err := pusher.ReadStored(object(all))
		if got := describe(pusher.Unreadable(err)); got != "database: Invalid pusher in database: "+want {
			t.Errorf("%s: got %s", value, got)
		}
	}
}
