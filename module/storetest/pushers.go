package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// Pushers tests the contract of [module.PusherStore].
func Pushers(t *testing.T, newStore func(*testing.T) module.PusherStore) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, func(*testing.T) module.PusherStore)
	}{
		{"every host lists pushers in order of creation", pusherOrder},
		{"a refused edit changes nothing", refusedPusherEdit},
		{"users are separate", pusherUsersApart},
		{"invalid user ids are refused, and an ended context changes nothing", refusedPusherCalls},
		{"no change of many writers is lost, and many writers of one pusher leave one", pusherWriters},
		{"many users are loaded at once", loadManyPushers},
		{"deleted pushers are gone", deletedPushers},
		{"a watch reports changes by all hosts, but no repeated sets", watchedPushers},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, newStore) })
	}
}

func aPusher(appID, pushkey string) pusher.Pusher {
	return pusher.Pusher{
		Key: pusher.Key{AppID: appID, Pushkey: pushkey}, Kind: pusher.HTTP,
		AppDisplayName: "App <&>", DeviceDisplayName: "Ü", Lang: "en",
		Data:  `{"url":"https://push.example.org/_matrix/push/v1/notify","n":12345678901234567890.10}`,
		Extra: []pusher.Member{{Name: "org.example.extra", Value: `[1e400]`}}, Device: "DEVICE", Activated: true,
	}
}

func setPushers(t *testing.T, store module.PusherStore, user mxid.UserID, pushers ...pusher.Pusher) {
	t.Helper()
	for _, p := range pushers {
		wantNoError(t, store.Update(t.Context(), user, func(list *pusher.List) error {
			list.Set(p)
			return nil
		}))
	}
}

// wantPushers compares all stored members of the pushers, in order.
func wantPushers(t *testing.T, store module.PusherStore, user mxid.UserID, want ...pusher.Pusher) {
	t.Helper()
	got, err := store.Load(t.Context(), user)
	wantNoError(t, err)
	if got.Len() != len(want) {
		t.Fatalf("got %d pushers, want %d", got.Len(), len(want))
	}
	for i, p := range got.All() {
		p.Created = want[i].Created
		wantEqual(t, string(p.AppendStored(nil)), string(want[i].AppendStored(nil)))
	}
}

func pusherOrder(t *testing.T, newStore func(*testing.T) module.PusherStore) {
	user := newUser()
	wantPushers(t, newStore(t), user)
	c, a, b := aPusher("c", "1"), aPusher("a", "2"), aPusher(`b","`, "3\x00ü")
	setPushers(t, newStore(t), user, c, a, b)
	wantPushers(t, newStore(t), user, c, a, b)

	c.Lang = "de"
	setPushers(t, newStore(t), user, c)
	wantPushers(t, newStore(t), user, c, a, b)

	wantNoError(t, newStore(t).Update(t.Context(), user, func(list *pusher.List) error {
		list.Delete(c.Key)
		return nil
	}))
	setPushers(t, newStore(t), user, c)
	wantPushers(t, newStore(t), user, a, b, c)
}

func refusedPusherEdit(t *testing.T, newStore func(*testing.T) module.PusherStore) {
	store, user, p := newStore(t), newUser(), aPusher("a", "1")
	setPushers(t, store, user, p)
	err := store.Update(t.Context(), user, func(list *pusher.List) error {
		list.Delete(p.Key)
		list.Set(aPusher("b", "2"))
		return errRefused
	})
	if !errors.Is(err, errRefused) {
		t.Errorf("got error %v, want the edit's", err)
	}
	wantPushers(t, store, user, p)
}

func pusherUsersApart(t *testing.T, newStore func(*testing.T) module.PusherStore) {
	store, users := newStore(t), oddUsers()
	for _, user := range users {
		wantPushers(t, store, user)
		setPushers(t, store, user, aPusher("same", string(user)))
	}
	for _, user := range users {
		wantPushers(t, store, user, aPusher("same", string(user)))
	}
}

// refusedPusherCalls checks that all calls fail for an invalid user id and after the end of
// their context, and store nothing.
func refusedPusherCalls(t *testing.T, newStore func(*testing.T) module.PusherStore) {
	store, user, p := newStore(t), newUser(), aPusher("a", "1")
	set := func(list *pusher.List) error { list.Set(p); return nil }
	wantRefused(t, user, func(ctx context.Context, user mxid.UserID) map[string]error {
		_, load := store.Load(ctx, user)
		return map[string]error{
			"Load":     load,
			"LoadMany": store.LoadMany(ctx, []mxid.UserID{user})[user].Err,
			"Update":   store.Update(ctx, user, set),
			"Delete":   store.Delete(ctx, user),
		}
	})
	wantPushers(t, store, user)
}

func pusherWriters(t *testing.T, newStore func(*testing.T) module.PusherStore) {
	hosts, user := [2]module.PusherStore{newStore(t), newStore(t)}, newUser()
	together(t, func(ctx context.Context, writer int) error {
		for _, p := range []pusher.Pusher{aPusher("app", name(writer)), aPusher("app", "same")} {
			p.DeviceDisplayName = name(writer)
			err := persist(ctx, func() error {
				return hosts[writer%2].Update(ctx, user, func(list *pusher.List) error { list.Set(p); return nil })
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	list, err := hosts[0].Load(t.Context(), user)
	wantNoError(t, err)
	places := map[int64]bool{}
	for _, p := range list.All() {
		places[p.Created] = true
	}
	if list.Len() != writers+1 || len(places) != writers+1 {
		t.Errorf("got %d pushers in %d places of the order of creation, want %d", list.Len(), len(places), writers+1)
	}
}

func loadManyPushers(t *testing.T, newStore func(*testing.T) module.PusherStore) {
	store, users, bad := newStore(t), oddUsers(), badUsers()
	for i, user := range users {
		if i%2 == 0 {
			setPushers(t, store, user, aPusher("a", string(user)), aPusher("b", string(user)))
		}
	}
	loaded := store.LoadMany(t.Context(), append(append(users, users...), bad...))
	if len(loaded) != len(users)+len(bad) || loaded[bad[0]].Err == nil {
		t.Errorf("got %d results, want %d", len(loaded), len(users)+len(bad))
	}
	for i, user := range users {
		want := 2 * ((i + 1) % 2)
		list, err := loaded[user].Value, loaded[user].Err
		if err != nil || list.Len() != want || want > 0 && list.All()[1].Pushkey != string(user) {
			t.Errorf("%q: got %d pushers, error %v, want %d", user, list.Len(), err, want)
		}
	}
}

func deletedPushers(t *testing.T, newStore func(*testing.T) module.PusherStore) {
	hosts, user := [2]module.PusherStore{newStore(t), newStore(t)}, newUser()
	wantNoError(t, hosts[0].Delete(t.Context(), user)) // without stored pushers
	setPushers(t, hosts[0], user, aPusher("a", "1"), aPusher("b", "2"))
	wantNoError(t, hosts[1].Delete(t.Context(), user))
	wantPushers(t, hosts[0], user)
	setPushers(t, hosts[0], user, aPusher("c", "3"))
	wantPushers(t, hosts[1], user, aPusher("c", "3"))
}

// watchedPushers tests stores that implement [module.PusherWatcher].
func watchedPushers(t *testing.T, newStore func(*testing.T) module.PusherStore) {
	watching, is := newStore(t).(module.PusherWatcher)
	if !is {
		t.Skip("the store is no PusherWatcher")
	}
	user, p, store := newUser(), aPusher("a", "1"), newStore(t)
	reported, started, ended := make(chan bool, 100), make(chan struct{}), make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		ended <- watching.Watch(ctx, func() { close(started) }, func(changed module.PusherChange) {
			if changed.User == user { // the store may have other tests' users
				reported <- changed.Repeated
			}
		})
	}()
	wait(t, started, "the watch did not start")
	toggle := func(list *pusher.List) error {
		p, _ := list.Pusher(p.Key)
		p.Extra = []pusher.Member{{Name: "enabled", Value: "false"}}
		list.Set(p)
		return nil
	}
	for _, change := range []struct {
		name     string
		make     func() error
		repeated int // reports of repeated sets
		changed  int // other reports
	}{
		{"a new pusher", func() error {
			return store.Update(t.Context(), user, func(list *pusher.List) error { list.Set(p); return nil })
		}, 0, 1},
		{"repeated sets", func() error { return repeatSets(t.Context(), store, user, p.Key) }, repeatedSets, 0},
		{"a change without effect", func() error { return store.Update(t.Context(), user, func(*pusher.List) error { return nil }) }, 0, 0},
		{"a change of a pusher", func() error { return store.Update(t.Context(), user, toggle) }, 0, 1},
		{"a removal", func() error {
			return store.Update(t.Context(), user, func(list *pusher.List) error { list.Delete(p.Key); return nil })
		}, 0, 1},
		{"another pusher", func() error {
			return store.Update(t.Context(), user, func(list *pusher.List) error { list.Set(p); return nil })
		}, 0, 1},
		{"a deletion", func() error { return store.Delete(t.Context(), user) }, 0, 1},
	} {
		wantNoError(t, change.make())
		repeated, changed := 0, 0
		for repeated+changed < change.repeated+change.changed {
			if wait(t, reported, change.name+" is not reported") {
				repeated++
			} else {
				changed++
			}
		}
		if repeated != change.repeated || changed != change.changed {
			t.Errorf("%s: %d reports, %d of a repeated set", change.name, changed, repeated)
		}
	}
	stop()
	if err := wait(t, ended, "the watch does not end with its context"); err == nil {
		t.Error("the end of a watch is no error")
	}
	if extra := len(reported); extra > 0 {
		t.Errorf("%d reports too many", extra)
	}
}

const repeatedSets = 20

func repeatSets(ctx context.Context, store module.PusherStore, user mxid.UserID, key pusher.Key) error {
	for n := range int64(repeatedSets) {
		err := store.Update(ctx, user, func(list *pusher.List) error {
			p, _ := list.Pusher(key)
			p.SetAt, p.Claim = n+1, n+1
			list.Set(p)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func wait[V any](t *testing.T, from <-chan V, otherwise string) (value V) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(patience):
		t.Fatal(otherwise)
	}
	return value
}
