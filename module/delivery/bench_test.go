package delivery

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// counter is a gateway that takes everything at once.
type counter struct {
	posts atomic.Int64
	until atomic.Int64
	full  chan struct{}
}

func (c *counter) Post(context.Context, string, []byte) (module.GatewayAnswer, error) {
	if c.posts.Add(1) == c.until.Load() {
		c.full <- struct{}{}
	}
	return module.GatewayAnswer{Status: 200}, nil
}

// pushersOnly is a host where every user has a pusher.
type pushersOnly struct {
	module.HostService
	mu    sync.Mutex
	lists map[mxid.UserID]pusher.List
}

func (h *pushersOnly) Pushers(_ context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[pusher.List] {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make(map[mxid.UserID]module.Result[pusher.List], len(users))
	for _, user := range users {
		list, found := h.lists[user]
		if !found {
			list = pusher.NewList(pusher.Pusher{
				Key: pusher.Key{AppID: "org.example.app", Pushkey: string(user)}, Kind: pusher.HTTP, SetAt: 1,
				Data: `{"url":"https://push.example.org/_matrix/push/v1/notify"}`,
			})
			h.lists[user] = list
		}
		all[user] = module.Result[pusher.List]{Value: list}
	}
	return all
}

func (h *pushersOnly) Rulesets(_ context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[pushrule.Ruleset] {
	all := make(map[mxid.UserID]module.Result[pushrule.Ruleset], len(users))
	for _, user := range users {
		all[user] = module.Result[pushrule.Ruleset]{Value: pushrule.ServerDefault(user)}
	}
	return all
}

// What it takes to decide for the members of a room whose rules are known, and
// beside it to evaluate for members who have theirs.
func BenchmarkDecide(b *testing.B) {
	feed := newFeed(b, worldRules{})
	d, err := New(Seams{Queue: newMemoryQueue(), Host: &pushersOnly{}, Feed: feed}, DefaultConfig())
	if err != nil {
		b.Fatal(err)
	}
	go feed.Run(b.Context())
	for !feed.Stats().Watching {
		runtime.Gosched()
	}
	event := module.Event{JSON: `{"type":"m.room.message","sender":"@s:h","content":{"body":"hello"}}`}
	for _, count := range []int{2, 10, 100, 1000, 100_000} {
		members := make([]match.Member, count)
		for i := range members {
			members[i].User = mxid.UserID(fmt.Sprintf("@user-%d:example.org", i))
		}
		ready := slices.Clone(members)
		if err := d.audience.fill(b.Context(), ready); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("decide/members=%d", count), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := d.Decide(b.Context(), event, members); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("evaluate/members=%d", count), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := d.Decide(b.Context(), event, ready); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// What the engine takes for a notification, without Redis and without HTTP: in
// rooms of one member and of a thousand.
func BenchmarkSender(b *testing.B) {
	for _, members := range []int{1, 1000} {
		b.Run(fmt.Sprintf("members=%d", members), func(b *testing.B) {
			gateway := &counter{full: make(chan struct{}, 1)}
			d, err := New(Seams{
				Queue: newMemoryQueue(), Gateway: gateway, Host: &pushersOnly{lists: map[mxid.UserID]pusher.List{}}, Feed: newFeed(b, worldRules{}),
			}, DefaultConfig())
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			go d.Run(ctx)
			for d.Stats().ShardsOwned < d.cfg.Shards {
				runtime.Gosched()
				time.Sleep(time.Millisecond)
			}
			users := make([]match.Member, 10_000)
			for i := range users {
				users[i].User = name(i)
			}
			body := strings.Repeat("x", 500)
			gateway.until.Store(int64(b.N / members * members))
			b.ResetTimer()
			for e := range b.N / members {
				event := module.Event{JSON: fmt.Sprintf(
					`{"event_id":"$%d","room_id":"!r:h","type":"m.room.message","sender":"@s:h","content":{"body":"%s"}}`, e, body)}
				from := e * members % len(users)
				decisions, err := d.Decide(ctx, event, users[from:min(from+members, len(users))])
				if err == nil {
					err = d.Notify(ctx, event, "", decisions)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			if b.N >= members {
				<-gateway.full
			}
		})
	}
}
