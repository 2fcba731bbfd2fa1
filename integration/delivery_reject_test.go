package integration

import (
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
)

func newPush(t *testing.T) *pushfx.Push {
	t.Helper()
	server := redistest.Single(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true, MaintNotificationsConfig: noMaintenance()})
	t.Cleanup(func() { client.Close() })
	push, err := pushfx.New(client, allowLoopback(pushfx.DefaultConfig()), pushfx.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return push
}

// setAt returns when the user's pusher of a key was last set, 0 if it is missing.
func setAt(t *testing.T, push *pushfx.Push, key pusher.Key) int64 {
	t.Helper()
	list, err := push.Pushers.List(t.Context(), alice)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := list.Pusher(key)
	return p.SetAt
}

func TestARejectedPusherIsRemovedWithItsClaim(t *testing.T) {
	t.Parallel()
	push := newPush(t)
	p := pusherAt("http://127.0.0.1:1"+pusher.NotifyPath, "key")
	if err := push.Pushers.Set(t.Context(), alice, p, pusher.RemoveOthers); err != nil {
		t.Fatal(err)
	}
	at := setAt(t, push, p.Key)
	for _, other := range []int64{at - 1, at + 1, 0} {
		if err := push.Host.RemovePusher(t.Context(), alice, p.Key, other); err != nil || setAt(t, push, p.Key) != at {
			t.Errorf("another generation: got %d, %v", setAt(t, push, p.Key), err)
		}
	}
	for range 2 { // a repetition has no effect
		if err := push.Host.RemovePusher(t.Context(), alice, p.Key, at); err != nil || setAt(t, push, p.Key) != 0 {
			t.Errorf("its generation: got %d, %v", setAt(t, push, p.Key), err)
		}
	}
	claims, err := push.Stores.Pushkeys.Load(t.Context(), p.Digest())
	if err != nil || len(claims.Users()) != 0 {
		t.Errorf("claims are left: %v, %v", claims.Users(), err)
	}
}

// A client sets a pusher again while a gateway's rejection removes it. The new pusher stays, whichever comes
// first.
func TestARejectionNeverRemovesANewerPusher(t *testing.T) {
	t.Parallel()
	rounds := 10_000
	if testing.Short() {
		rounds = 500
	}
	push := newPush(t)
	p := pusherAt("http://127.0.0.1:1"+pusher.NotifyPath, "key")
	if err := push.Pushers.Set(t.Context(), alice, p, pusher.RemoveOthers); err != nil {
		t.Fatal(err)
	}
	for round := range rounds {
		rejected := setAt(t, push, p.Key)
		var racing sync.WaitGroup
		racing.Go(func() {
			if err := push.Host.RemovePusher(t.Context(), alice, p.Key, rejected); err != nil {
				t.Error(err)
			}
		})
		racing.Go(func() {
			if err := push.Pushers.Set(t.Context(), alice, p, pusher.RemoveOthers); err != nil {
				t.Error(err)
			}
		})
		racing.Wait()
		if at := setAt(t, push, p.Key); at <= rejected {
			t.Fatalf("round %d: the new pusher has %d after %d", round, at, rejected)
		}
	}
}
