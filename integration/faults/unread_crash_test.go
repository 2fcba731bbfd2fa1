package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/module/storetest"
	"github.com/pushfx/pushfx/module/unread"
)

// unreadCrash is a host that gets an event for three users: one without a list, one with a short list, and one whose
// list is compacted after the append.
type unreadCrash struct {
	server *redistest.Server
	users  []mxid.UserID
	model  *unread.Service // gets each call once, without faults
}

func newUnreadCrash(t *testing.T, server *redistest.Server, name string) *unreadCrash {
	t.Helper()
	c := &unreadCrash{server: server, model: unread.New(storetest.NewMemory().Unread(), unread.Config{}, 24*time.Hour, nil, nil)}
	for i, operations := range []int{0, 1, unread.MaxOps} {
		user := mxid.UserID(fmt.Sprintf("@%s-%d:x", name, i))
		c.users = append(c.users, user)
		for i := range operations {
			c.add(t, c.model, int64(i+1), user)
			c.appendOnly(t, int64(i+1), user)
		}
	}
	return c
}

// appendOnly adds an event by a host that does not compact, to a user whose list was never compacted.
func (c *unreadCrash) appendOnly(t *testing.T, position int64, user mxid.UserID) {
	t.Helper()
	memory := storetest.NewMemory()
	c.add(t, unread.New(memory.Unread(), unread.Config{}, 24*time.Hour, nil, nil), position, user)
	if err := c.server.Client(t).RPush(t.Context(), stored.Keys{}.Unread(user), memory.Texts[user]).Err(); err != nil {
		t.Fatal(err)
	}
}

func (c *unreadCrash) add(t *testing.T, s *unread.Service, position int64, users ...mxid.UserID) {
	t.Helper()
	if err := addMovedEvent(t, t.Context(), s, position, users...); err != nil {
		t.Fatal(err)
	}
}

func addMovedEvent(t *testing.T, ctx context.Context, s *unread.Service, position int64, users ...mxid.UserID) error {
	t.Helper()
	var decisions module.Decisions
	for _, user := range users {
		decisions = append(decisions, notifying(t, user))
	}
	return s.Add(ctx, module.Place{Room: movedRoom, Position: position, Thread: module.MainThread}, decisions)
}

func (c *unreadCrash) wantModel(t *testing.T) {
	t.Helper()
	s := newUnread(t, c.server.Client(t))
	for _, user := range c.users {
		want, err := c.model.Rooms(t.Context(), user)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.Rooms(t.Context(), user); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s has %v, want %v, error %v", user, got, want, err)
		}
	}
}

// A host dies before or after each command that an Add with a compaction sends. Another host repeats the Add.
func TestAHostDiesAtEachCommandOfAdd(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Single(t)
	warm := newUnreadCrash(t, server, "warm") // the scripts are loaded
	warm.add(t, newUnread(t, server.Client(t)), 100, warm.users...)
	for _, point := range []struct {
		command string
		n       int
	}{{"RPUSHX", 1}, {"RPUSHX", 2}, {"RPUSHX", 3}, {"RPUSH", 1}, {"LRANGE", 1}, {"EVALSHA", 1}} {
		for when, plan := range map[string]func(*redistest.Proxy, int, ...string) *redistest.Fault{
			"before": (*redistest.Proxy).CutRequest, "after": (*redistest.Proxy).CutReply,
		} {
			t.Run(fmt.Sprint(when, " ", point.command, " ", point.n), func(t *testing.T) {
				t.Parallel()
				c := newUnreadCrash(t, server, fmt.Sprint(when, point.command, point.n))
				proxy := redistest.NewProxy(t, server)
				fault := plan(proxy, point.n, point.command)
				ctx, die := context.WithCancel(t.Context())
				go func() {
					<-fault.Struck()
					die()
				}()
				host := newUnread(t, proxy.Client(t, func(o *redis.Options) { o.MaxRetries = -1 }))
				_ = addMovedEvent(t, ctx, host, 100, c.users...) // a failed compaction is no error
				select {
				case <-fault.Struck():
				case <-time.After(hosttest.Never):
					t.Fatal("the command was not sent")
				}
				c.add(t, c.model, 100, c.users...)
				c.add(t, newUnread(t, server.Client(t)), 100, c.users...)
				c.wantModel(t)
			})
		}
	}
}

// A host's compaction reaches Redis after another host has appended, compacted and appended again.
func TestALateCompactionChangesNothing(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Single(t)
	warm := newUnreadCrash(t, server, "warm")
	warm.add(t, newUnread(t, server.Client(t)), 100, warm.users...)
	c := newUnreadCrash(t, server, "late")
	proxy := redistest.NewProxy(t, server)
	held := proxy.HoldRequest(1, "EVALSHA")
	ctx, die := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- addMovedEvent(t, ctx, newUnread(t, proxy.Client(t)), 100, c.users...) }()
	<-held.Struck()
	c.add(t, c.model, 100, c.users...)
	other := newUnread(t, server.Client(t))
	for position := range int64(3) {
		c.add(t, c.model, 101+position, c.users...)
		c.add(t, other, 101+position, c.users...)
	}
	die()
	held.Release()
	<-ended
	c.wantModel(t)
}
