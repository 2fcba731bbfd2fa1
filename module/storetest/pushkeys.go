package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// Pushkeys tests the contract of [module.PushkeyIndex].
func Pushkeys(t *testing.T, newIndex func(*testing.T) module.PushkeyIndex) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, func(*testing.T) module.PushkeyIndex)
	}{
		{"every host loads claims", claimsRoundTrip},
		{"a refused edit changes nothing", refusedClaim},
		{"no claim is lost among many hosts", claimants},
		{"an ended context changes nothing", claimEndedContext},
		{"a pending pushkey is listed until it is cleared", pendingPushkeys},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, newIndex) })
	}
}

func newDigest() pusher.Digest { return pusher.Key{AppID: "app", Pushkey: rand.Text()}.Digest() }

// claimBy adds a claim, unless an earlier try has added it and its reply came too late.
func claimBy(user mxid.UserID) func(*pusher.Claims) error {
	return func(c *pusher.Claims) error {
		if !slices.Contains(c.Users(), user) {
			c.Add(user, 1)
		}
		return nil
	}
}

func wantClaims(t *testing.T, index module.PushkeyIndex, key pusher.Digest, want ...pusher.Owner) {
	t.Helper()
	claims, err := index.Load(t.Context(), key)
	wantNoError(t, err)
	got := slices.Clone(claims.Owners())
	slices.SortFunc(got, func(a, b pusher.Owner) int { return int(a.Claim - b.Claim) })
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func claimsRoundTrip(t *testing.T, newIndex func(*testing.T) module.PushkeyIndex) {
	key, users := newDigest(), oddUsers()
	wantClaims(t, newIndex(t), key)
	var want []pusher.Owner
	for i, user := range users {
		claims, err := newIndex(t).Update(t.Context(), key, claimBy(user))
		wantNoError(t, err)
		want = append(want, pusher.Owner{User: user, Claim: int64(i + 1)})
		if len(claims.Owners()) != i+1 {
			t.Errorf("the update returned %d owners, want %d", len(claims.Owners()), i+1)
		}
	}
	wantClaims(t, newIndex(t), key, want...)
	wantClaims(t, newIndex(t), newDigest())
	_, err := newIndex(t).Update(t.Context(), key, func(c *pusher.Claims) error {
		for _, owner := range c.Owners() {
			c.Release(owner)
		}
		return nil
	})
	wantNoError(t, err)
	wantClaims(t, newIndex(t), key)
}

func refusedClaim(t *testing.T, newIndex func(*testing.T) module.PushkeyIndex) {
	index, key := newIndex(t), newDigest()
	_, err := index.Update(t.Context(), key, func(c *pusher.Claims) error {
		c.Add(newUser(), 1)
		return errRefused
	})
	if !errors.Is(err, errRefused) {
		t.Errorf("got error %v, want the edit's", err)
	}
	wantClaims(t, index, key)
}

func claimants(t *testing.T, newIndex func(*testing.T) module.PushkeyIndex) {
	hosts, key := [2]module.PushkeyIndex{newIndex(t), newIndex(t)}, newDigest()
	together(t, func(ctx context.Context, writer int) error {
		user := newUser()
		return persist(ctx, func() error {
			_, err := hosts[writer%2].Update(ctx, key, claimBy(user))
			return err
		})
	})
	claims, err := hosts[0].Load(t.Context(), key)
	wantNoError(t, err)
	numbers := map[int64]bool{}
	for _, owner := range claims.Owners() {
		numbers[owner.Claim] = true
	}
	if len(claims.Owners()) != writers || len(numbers) != writers {
		t.Errorf("got %d owners with %d numbers, want %d", len(claims.Owners()), len(numbers), writers)
	}
}

func claimEndedContext(t *testing.T, newIndex func(*testing.T) module.PushkeyIndex) {
	index, key := newIndex(t), newDigest()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := index.Load(ctx, key)
	wantUnavailable(t, err)
	_, err = index.Update(ctx, key, claimBy(newUser()))
	wantUnavailable(t, err)
	wantUnavailable(t, index.MarkPending(ctx, module.PendingPushkey{Key: key, Claim: 1}))
	wantUnavailable(t, index.ClearPending(ctx, module.PendingPushkey{Key: key, Claim: 1}))
	_, err = index.Pending(ctx, time.Now(), 10)
	wantUnavailable(t, err)
	wantClaims(t, index, key)
}

func pendingPushkeys(t *testing.T, newIndex func(*testing.T) module.PushkeyIndex) {
	hosts, now := [2]module.PushkeyIndex{newIndex(t), newIndex(t)}, time.Now()
	claim := func(key pusher.Digest, at time.Time) module.PendingPushkey {
		return module.PendingPushkey{Key: key, Claim: at.UnixMicro()}
	}
	early, late := claim(newDigest(), now.Add(-time.Hour)), claim(newDigest(), now)
	later := claim(early.Key, now.Add(-time.Minute))
	want := func(before time.Time, want ...module.PendingPushkey) {
		t.Helper()
		all, err := hosts[1].Pending(t.Context(), before, 1000)
		wantNoError(t, err)
		all = slices.DeleteFunc(all, func(u module.PendingPushkey) bool { return u.Key != early.Key && u.Key != late.Key })
		if !slices.Equal(all, want) {
			t.Errorf("got %v, want %v", all, want)
		}
	}
	soon := now.Add(time.Minute)
	for _, u := range []module.PendingPushkey{late, early, late} {
		wantNoError(t, hosts[0].MarkPending(t.Context(), u))
	}
	want(soon, early, late)
	want(time.Time{}, early, late)
	want(now.Add(-time.Second), early)
	wantNoError(t, hosts[1].MarkPending(t.Context(), later))
	wantNoError(t, hosts[0].MarkPending(t.Context(), early)) // no effect: a later claim is pending
	want(soon, later, late)
	wantNoError(t, hosts[0].ClearPending(t.Context(), early))
	want(soon, later, late)
	wantNoError(t, hosts[0].ClearPending(t.Context(), later))
	wantNoError(t, hosts[0].ClearPending(t.Context(), later))
	want(soon, late)
	wantNoError(t, hosts[1].ClearPending(t.Context(), claim(late.Key, soon)))
	want(soon)
}
