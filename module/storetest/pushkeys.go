package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"testing"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// Pushkeys tests the contract of [module.PushkeyIndex]. NewStore returns the store of
// pushers with the same watchers.
func Pushkeys(t *testing.T, newIndex func(*testing.T) module.PushkeyIndex, newStore func(*testing.T) module.PusherStore) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, func(*testing.T) module.PushkeyIndex)
	}{
		{"every host loads an entry", entryRoundTrip},
		{"a refused edit changes nothing", refusedClaim},
		{"no claim is lost among many hosts", claimants},
		{"an ended context changes nothing", claimEndedContext},
		{"a watch of the pushers reports who has lost a pushkey", func(t *testing.T, newIndex func(*testing.T) module.PushkeyIndex) {
			watchedLosers(t, newIndex(t), newStore(t))
		}},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, newIndex) })
	}
}

func newDigest() pusher.Digest { return pusher.Key{AppID: "app", Pushkey: rand.Text()}.Digest() }

func claimAs(user mxid.UserID, others pusher.Others) func(*pusher.Entry) error {
	return func(e *pusher.Entry) error {
		e.Claim(user, others, 1)
		return nil
	}
}

func wantEntry(t *testing.T, index module.PushkeyIndex, key pusher.Digest, want pusher.Entry) {
	t.Helper()
	got, err := index.Load(t.Context(), key)
	many := index.LoadMany(t.Context(), []pusher.Digest{key, newDigest(), key})
	if err != nil || many[key].Err != nil || len(many) != 2 {
		t.Fatalf("got errors %v and %v, %d entries", err, many[key].Err, len(many))
	}
	if !got.Equal(want) || !want.Equal(many[key].Value) {
		t.Errorf("got %v and %v, want %v", got, many[key].Value, want)
	}
	for other, result := range many {
		if other != key && (result.Err != nil || !result.Value.Equal(pusher.Entry{})) {
			t.Errorf("a key without an entry: got %+v", result)
		}
	}
}

func entryRoundTrip(t *testing.T, newIndex func(*testing.T) module.PushkeyIndex) {
	key, users := newDigest(), oddUsers()
	var want pusher.Entry
	wantEntry(t, newIndex(t), key, want)
	change := func(edit func(*pusher.Entry) error) {
		t.Helper()
		_ = edit(&want)
		got, err := newIndex(t).Update(t.Context(), key, edit)
		wantNoError(t, err)
		if !got.Equal(want) {
			t.Errorf("the update returned %v, want %v", got, want)
		}
		wantEntry(t, newIndex(t), key, want)
	}
	for _, user := range users {
		change(claimAs(user, pusher.KeepOthers))
	}
	change(claimAs(users[0], pusher.RemoveOthers))
	change(func(e *pusher.Entry) error { e.Address = true; return claimAs(users[1], pusher.KeepOthers)(e) })
	for _, user := range want.Users {
		change(func(e *pusher.Entry) error { e.Forget(user); return nil })
	}
	change(func(e *pusher.Entry) error { *e = pusher.Entry{}; return nil })
}

func refusedClaim(t *testing.T, newIndex func(*testing.T) module.PushkeyIndex) {
	index, key := newIndex(t), newDigest()
	_, err := index.Update(t.Context(), key, func(e *pusher.Entry) error {
		e.Claim(newUser(), pusher.RemoveOthers, 1)
		return errRefused
	})
	if !errors.Is(err, errRefused) {
		t.Errorf("got error %v, want the edit's", err)
	}
	wantEntry(t, index, key, pusher.Entry{})
}

func claimants(t *testing.T, newIndex func(*testing.T) module.PushkeyIndex) {
	hosts, key := [2]module.PushkeyIndex{newIndex(t), newIndex(t)}, newDigest()
	together(t, func(ctx context.Context, writer int) error {
		user := newUser()
		return persist(ctx, func() error {
			_, err := hosts[writer%2].Update(ctx, key, func(e *pusher.Entry) error {
				if !slices.Contains(e.Users, user) { // an earlier try may have claimed, and its reply came too late
					e.Claim(user, pusher.KeepOthers, 1)
				}
				return nil
			})
			return err
		})
	})
	entry, err := hosts[0].Load(t.Context(), key)
	wantNoError(t, err)
	if len(entry.Users) != min(writers, pusher.MaxUsers) || entry.Last < writers {
		t.Errorf("got %+v after %d users", entry, writers)
	}
}

func claimEndedContext(t *testing.T, newIndex func(*testing.T) module.PushkeyIndex) {
	index, key := newIndex(t), newDigest()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := index.Load(ctx, key)
	wantUnavailable(t, err)
	wantUnavailable(t, index.LoadMany(ctx, []pusher.Digest{key})[key].Err)
	_, err = index.Update(ctx, key, claimAs(newUser(), pusher.RemoveOthers))
	wantUnavailable(t, err)
	wantEntry(t, index, key, pusher.Entry{})
}

// watchedLosers tests stores that implement [module.PusherWatcher].
func watchedLosers(t *testing.T, index module.PushkeyIndex, store module.PusherStore) {
	watching, is := store.(module.PusherWatcher)
	if !is {
		t.Skip("the store is no PusherWatcher")
	}
	key, first, second, third := newDigest(), newUser(), newUser(), newUser()
	reported, started := make(chan module.PusherChange, 100), make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		_ = watching.Watch(ctx, func() { close(started) }, func(changed module.PusherChange) {
			if changed.User == first || changed.User == second || changed.User == third { // the store may have other tests' users
				reported <- changed
			}
		})
	}()
	wait(t, started, "the watch did not start")
	for _, step := range []struct {
		edit func(*pusher.Entry) error
		lost mxid.UserID
	}{
		{claimAs(first, pusher.RemoveOthers), ""}, {claimAs(first, pusher.KeepOthers), ""}, {claimAs(second, pusher.RemoveOthers), first},
		{claimAs(first, pusher.KeepOthers), ""}, {claimAs(first, pusher.RemoveOthers), second}, {claimAs(third, pusher.RemoveOthers), first},
	} {
		_, err := index.Update(t.Context(), key, step.edit)
		wantNoError(t, err)
		if step.lost == "" {
			continue
		}
		if got := wait(t, reported, string(step.lost)+" is not reported"); got.User != step.lost || got.Repeated {
			t.Errorf("got %+v, want %s", got, step.lost)
		}
	}
	if extra := len(reported); extra > 0 {
		t.Errorf("%d reports too many", extra)
	}
}
