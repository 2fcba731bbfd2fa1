package redisqueue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/mxid"
)

const (
	gate  = "https://push.example.org:443 app"
	lease = 100 * time.Millisecond
)

var errStopped = errors.New("the host has stopped")

// steps is a hook of a client that sends the commands of a pipeline one by one, and calls
// functions before and after each of them. An error of before stops the command, and an error
// of after replaces its reply.
type steps struct {
	before, after func(redis.Cmder) error
	isStopped     atomic.Bool // the host sends nothing more
}

func (s *steps) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *steps) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, c redis.Cmder) error { return s.do(c, func() error { return next(ctx, c) }) }
}

func (s *steps) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, all []redis.Cmder) (failed error) {
		for _, c := range all {
			if err := s.do(c, func() error { return next(ctx, []redis.Cmder{c}) }); err != nil && failed == nil {
				failed = err
			}
		}
		return failed
	}
}

func (s *steps) do(c redis.Cmder, next func() error) error {
	if name := c.Name(); name == "hello" || name == "client" || name == "ping" {
		return next()
	}
	err := error(nil)
	if s.isStopped.Load() {
		err = errStopped
	} else if s.before != nil {
		err = s.before(c)
	}
	if err == nil {
		if err = next(); s.after != nil && err == nil {
			err = s.after(c)
		}
	}
	if err != nil {
		c.SetErr(err)
	}
	return err
}

// isOfIndex reports whether a command is a script on a shard of the index.
func isOfIndex(c redis.Cmder) bool {
	return strings.HasPrefix(c.Name(), "eval") && strings.HasSuffix(fmt.Sprint(c.Args()[3]), ":gates")
}

// host is a host with steps.
type host struct {
	*testing.T
	*redisqueue.Queue
	steps
}

func newHost(t *testing.T, client redis.UniversalClient) *host {
	h := &host{T: t}
	client.(interface{ AddHook(redis.Hook) }).AddHook(&h.steps)
	h.Queue = newQueue(t, client)
	if err := h.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return h
}

func note(n int) module.Notification {
	return module.Notification{ID: fmt.Sprintf("%08d", n), Priority: module.HighPriority, Room: "room0000", Text: fmt.Sprint("text ", n)}
}

// add adds a notification for pushers, which it claims.
func (h *host) add(user mxid.UserID, n int, pushers ...string) (module.Appended, error) {
	a := module.AppendRequest{User: user, Notification: note(n), Lease: lease, MaxUserBytes: 1 << 18, MaxClaims: len(pushers)}
	for _, pusher := range pushers {
		a.Pushers = append(a.Pushers, module.Recipient{Pusher: pusher, Gate: gate, Claim: true})
	}
	r := h.Append(h.Context(), []module.AppendRequest{a})[0]
	return r.Value, r.Err
}

func (h *host) mustAdd(user mxid.UserID, n int, pushers ...string) []*module.Claim {
	h.Helper()
	done, err := h.add(user, n, pushers...)
	if err != nil {
		h.Fatal(err)
	}
	return done.Claims
}

// look takes users, and claims their pushers.
func (h *host) look(pushers ...string) (claims []*module.Claim, err error) {
	looked, err := h.Look(h.Context(), module.Look{Limit: 100, Lease: lease, Gate: func(string) module.GateLimit { return module.GateLimit{Most: 100, Failing: 10} }})
	if err != nil {
		return nil, err
	}
	var requests []module.ClaimRequest
	for _, u := range looked.Users {
		r := module.ClaimRequest{DueUser: u, Lease: lease, Limit: 16, Read: 1}
		for _, pusher := range pushers {
			r.Pushers = append(r.Pushers, module.PusherGate{Pusher: pusher, Gate: gate})
		}
		requests = append(requests, r)
	}
	for _, r := range h.Claim(h.Context(), requests) {
		if r.Err != nil {
			err = r.Err
			continue
		}
		for _, p := range r.Value.Pushers {
			claims = append(claims, p.Claim)
		}
	}
	return claims, err
}

// send sends what a pusher has before it.
func (h *host) send(c *module.Claim, sent func(module.Notification)) error {
	for {
		all, end, err := h.Read(h.Context(), c, 2)
		if err != nil {
			return err
		}
		if len(all) > 0 {
			sent(all[0])
		}
		if len(all) > 1 {
			end = all[1].Number
		}
		if left, err := h.Complete(h.Context(), c, module.Done{To: end}); err != nil || left == 0 {
			return err
		}
	}
}

// wantSent looks until the pushers have been sent something.
func (h *host) wantSent(what string, pushers ...string) {
	h.Helper()
	missing := map[string]bool{}
	for _, pusher := range pushers {
		missing[pusher] = true
	}
	for deadline := time.Now().Add(15 * lease); len(missing) > 0; time.Sleep(lease / 20) {
		claims, err := h.look(pushers...)
		if err != nil {
			h.Fatal(err)
		}
		for _, c := range claims {
			if err := h.send(c, func(module.Notification) { delete(missing, c.Pusher) }); err != nil {
				h.Error(err)
			}
		}
		if time.Now().After(deadline) {
			h.Errorf("%s: no look finds %v", what, missing)
			return
		}
	}
}
