package redisqueue_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

// commandsOf returns how many commands Redis has processed.
func commandsOf(t *testing.T, client redis.UniversalClient) int {
	t.Helper()
	_, after, _ := strings.Cut(client.Info(t.Context(), "stats").Val(), "total_commands_processed:")
	line, _, _ := strings.Cut(after, "\r\n")
	n, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// 100 accounts make 100 gates each. A summary costs no more, and soon knows a gate with many users again.
func TestASummaryBesideManyGates(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	h := newHost(t, client)
	summary := func() module.QueueSummary {
		t.Helper()
		s, err := h.Summary(t.Context(), func(string, module.Trouble) bool { return false })
		if err != nil || s.Refused != nil {
			t.Fatal(err, s.Refused)
		}
		return s
	}
	for user := range 200 {
		h.mustAdd(mxid.UserID(fmt.Sprintf("@user%d:x", user)), 1, "p")
	}
	if s := summary(); s.Gates[gate] != 200 || s.Notifications != 200 {
		t.Errorf("got %+v", s)
	}
	for user := range 100 {
		a := module.AppendRequest{User: mxid.UserID(fmt.Sprintf("@many%d:x", user)), Lease: lease, MaxUserBytes: 1 << 10, Notification: note(1)}
		for n := range 100 {
			a.Pushers = append(a.Pushers, module.Recipient{Pusher: fmt.Sprint("p", n), Gate: fmt.Sprintf("https://own%d:443 app%d", user, n)})
		}
		if result := h.Append(t.Context(), []module.AppendRequest{a})[0]; result.Err != nil {
			t.Fatal(result.Err)
		}
	}
	before := commandsOf(t, client)
	s := summary()
	if n := commandsOf(t, client) - before; n > 1000 {
		t.Errorf("%d commands", n)
	}
	if s.Gates[gate] != 200 || len(s.Gates) > 100 || s.Notifications < 8_000 || s.Notifications > 12_000 {
		t.Errorf("%d at the gate, %d gates, %d notifications", s.Gates[gate], len(s.Gates), s.Notifications)
	}
	fresh := newHost(t, client)
	client.Del(t.Context(), stored.Keys{}.DeliverySummary())
	for range 1000 {
		if s, _ := fresh.Summary(t.Context(), func(string, module.Trouble) bool { return false }); s.Gates[gate] == 200 {
			return
		}
	}
	t.Error("the gate with the most users is not found")
}

// A shard that cannot be read is left out.
func TestASummaryWithoutAShard(t *testing.T) {
	t.Parallel()
	h := newHost(t, redistest.Single(t).Client(t))
	for user := range 100 {
		h.mustAdd(mxid.UserID(fmt.Sprintf("@user%d:x", user)), 1, "p")
	}
	errAway := errors.New("away")
	h.before = func(cmd redis.Cmder) error {
		if args := cmd.Args(); len(args) > 1 && strings.Contains(fmt.Sprint(args[1]), (stored.Keys{}).ShardGates(0)) {
			return errAway
		}
		return nil
	}
	s, err := h.Summary(context.WithoutCancel(t.Context()), func(string, module.Trouble) bool { return false })
	if err != nil || s.Refused == nil || s.Gates[gate] == 0 || s.Gates[gate] >= 100 {
		t.Errorf("got %+v, %v", s, err)
	}
}

// A context may end at any command. What was not read is left out, and the summary or its error says so.
func TestASummaryWhoseContextEnds(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"zrange", "zcard", "zrandmember", "hkeys", "hmget"} {
		h := newHost(t, redistest.Single(t).Client(t))
		h.mustAdd(alice, 1, "p")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		seen := false
		h.before = func(cmd redis.Cmder) error {
			if cmd.Name() == at {
				seen = true
				cancel()
			}
			return nil
		}
		s, err := h.Summary(ctx, func(string, module.Trouble) bool { return false })
		if err == nil && s.Refused == nil || !seen {
			t.Errorf("%s: got %+v, %v, seen is %t", at, s, err, seen)
		}
	}
}

// One host summarizes for all. If it stops, another one does.
func TestOneHostSummarizes(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	one, other := newHost(t, client), newHost(t, client)
	one.mustAdd(alice, 1, "p")
	summarizes := func(h *host) bool {
		t.Helper()
		s, err := h.Summary(t.Context(), func(string, module.Trouble) bool { return false })
		if err != nil || s.Refused != nil || s.Elsewhere == (s.Notifications == 1) {
			t.Errorf("got %+v, %v", s, err)
		}
		return !s.Elsewhere
	}
	for range 2 {
		if !summarizes(one) || summarizes(other) {
			t.Error("want the first host alone")
		}
	}
	key := stored.Keys{}.DeliverySummary()
	if left := client.PTTL(t.Context(), key).Val(); left <= 0 || left > time.Minute {
		t.Errorf("the key expires in %v", left)
	}
	client.Del(t.Context(), key) // as when it has expired
	if !summarizes(other) || summarizes(one) {
		t.Error("want the second host alone")
	}
	client.Del(t.Context(), key)
	client.RPush(t.Context(), key, "x")
	if !summarizes(one) || !summarizes(other) {
		t.Error("a host waits for a key that cannot be used")
	}
}
