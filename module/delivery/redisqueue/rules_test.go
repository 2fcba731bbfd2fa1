package redisqueue_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

const alice mxid.UserID = "@alice:example.org"

// noScript is what Redis answers when it has forgotten a script.
type noScript struct{}

func (noScript) Error() string { return "NOSCRIPT No matching script." }
func (noScript) RedisError()   {}

func TestALogExpiresOnlyWhileNothingWaits(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	h, key := newHost(t, client), stored.Keys{}.UserLog(alice)
	for n := range 2 {
		claim := h.mustAdd(alice, n, "p")[0]
		if ttl := client.PTTL(t.Context(), key).Val(); ttl > 0 {
			t.Errorf("notification %d is lost after %v", n, ttl)
		}
		if _, err := h.Complete(t.Context(), claim, module.Done{To: claim.Number + 1}); err != nil {
			t.Fatal(err)
		}
		if ttl := client.PTTL(t.Context(), key).Val(); ttl < 14*time.Minute || ttl > 15*time.Minute {
			t.Errorf("the empty log expires after %v", ttl)
		}
	}
}

// Each test fails without its rule; see the package comment.
func TestTheRulesOfTheIndex(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(a, b, c *host){
		"1: an append behind a claim lists": func(a, b, c *host) {
			a.before = func(cmd redis.Cmder) error {
				if isOfIndex(cmd) {
					a.isStopped.Store(true)
					return errStopped
				}
				return nil
			}
			if _, err := a.add(alice, 1, "p"); err == nil {
				c.Error("added without a listing")
			}
			if claims := b.mustAdd(alice, 2, "p"); claims[0] != nil {
				c.Error("claimed twice")
			}
			c.wantSent("after the claim of a host that died", "p")
		},
		"2, 3: a removal behind a listing has no effect": func(a, b, c *host) {
			one := a.mustAdd(alice, 1, "p")[0]
			if _, err := a.Complete(a.Context(), one, module.Done{To: one.Number + 1}); err != nil {
				c.Fatal(err)
			}
			b.mustAdd(alice, 2, "p") // and dies; the removal of a comes now
			time.Sleep(2 * lease)
			c.wantSent("after a removal", "p")
		},
		"2: a later listing does not raise a score": func(a, _, c *host) {
			claims := a.mustAdd(alice, 1, "p", "q") // the claim of q lapses
			if err := a.Postpone(a.Context(), claims[0], time.Hour, module.Trouble{}, false); err != nil {
				c.Fatal(err)
			}
			time.Sleep(2 * lease)
			c.wantSent("after the delay of another pusher", "q")
		},
		"2, 3: a raised score behind a listing has no effect": func(a, b, c *host) {
			one := a.mustAdd(alice, 1, "p")[0]
			if err := a.Renew(a.Context(), one, time.Hour, false); err != nil {
				c.Fatal(err)
			}
			time.Sleep(lease)
			b.before = func(cmd redis.Cmder) error {
				if isOfIndex(cmd) && len(cmd.Args()) == 13 { // b raises the score to an hour
					b.before = nil
					if err := a.Postpone(a.Context(), one, 0, module.Trouble{}, false); err != nil {
						c.Error(err)
					}
				}
				return nil
			}
			if claims, err := b.look("p"); len(claims) > 0 || err != nil {
				c.Errorf("got %v, %v", claims, err)
			}
			if b.before != nil {
				c.Error("no score was raised")
			}
			c.wantSent("after a raised score", "p")
		},
		"3: a score that is learned after a completion is not removed": func(a, b, c *host) {
			claims := a.mustAdd(alice, 1, "p", "q")
			if _, err := a.Complete(a.Context(), claims[1], module.Done{To: claims[1].Number + 1}); err != nil {
				c.Fatal(err)
			}
			var isDone atomic.Bool
			a.after = func(redis.Cmder) error { // the completion of p
				if isDone.Swap(true) {
					return nil
				}
				b.mustAdd(alice, 2, "p")
				if err := a.Postpone(a.Context(), claims[1], 0, module.Trouble{}, false); !errors.Is(err, module.ErrFenced) {
					c.Error(err)
				}
				return nil
			}
			if left, err := a.Complete(a.Context(), claims[0], module.Done{To: claims[0].Number + 1}); left != 0 || err != nil {
				c.Fatal(left, err)
			}
			time.Sleep(2 * lease)
			c.wantSent("after a removal", "p")
		},
		"3: a pusher that the host does not know keeps the user listed": func(a, b, c *host) {
			a.mustAdd(alice, 1, "p")
			b.mustAdd(alice, 2, "p", "r")
			time.Sleep(2 * lease) // both have died
			claims, err := a.look("p", "q")
			if len(claims) != 1 || err != nil {
				c.Fatal(claims, err)
			}
			if err := a.send(claims[0], func(module.Notification) {}); err != nil {
				c.Fatal(err)
			}
			time.Sleep(2 * lease)
			c.wantSent("after the other pusher", "r")
		},
		"4: Append returns after the listing": func(a, _, c *host) {
			a.before = func(cmd redis.Cmder) error {
				if isOfIndex(cmd) {
					return errStopped
				}
				return nil
			}
			if done, err := a.add(alice, 1, "p"); err == nil {
				c.Errorf("added without a listing: %+v", done)
			}
		},
		"4: a listing that came before its append is repeated": func(a, b, c *host) {
			appends := 0
			a.before = func(cmd redis.Cmder) error {
				if !strings.HasPrefix(cmd.Name(), "eval") || isOfIndex(cmd) {
					return nil
				}
				switch appends++; appends {
				case 1:
					return noScript{} // so it is sent again
				case 2:
					time.Sleep(2 * lease)
					if claims, err := b.look("p"); len(claims) > 0 || err != nil { // removes the user
						c.Error(claims, err)
					}
				}
				return nil
			}
			a.mustAdd(alice, 1, "p") // and dies
			if appends != 2 {
				c.Errorf("%d appends", appends)
			}
			c.wantSent("after a listing that came first", "p")
		},
		"5: a completion compares": func(a, b, c *host) {
			one := a.mustAdd(alice, 1, "p")[0]
			a.mustAdd(alice, 2, "p")
			stale := *one
			if left, err := a.Complete(a.Context(), one, module.Done{To: one.Number + 1}); left != 1 || err != nil {
				c.Fatal(left, err)
			}
			again := stale
			if left, err := a.Complete(a.Context(), &again, module.Done{To: one.Number}); left != 1 || err != nil {
				c.Errorf("repeated after a lost reply: %d, %v", left, err)
			}
			again = stale
			if _, err := a.Complete(a.Context(), &again, module.Done{To: one.Number + 1}); !errors.Is(err, module.ErrFenced) {
				c.Errorf("from another place: %v", err)
			}
			var claims []*module.Claim
			for deadline := time.Now().Add(20 * lease); len(claims) == 0 && time.Now().Before(deadline); {
				claims, _ = b.look("p")
			}
			if _, err := a.Complete(a.Context(), one, module.Done{To: one.Number + 1}); !errors.Is(err, module.ErrFenced) {
				c.Errorf("of another claim: %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Single(t)
			warm := newHost(t, server.Client(t)) // the scripts are loaded
			claims := warm.mustAdd("@warm:up", 0, "p", "q")
			_ = warm.Postpone(t.Context(), claims[1], 0, module.Trouble{}, false)
			if err := warm.send(claims[0], func(module.Notification) {}); err != nil {
				t.Fatal(err)
			}
			warm.wantSent("to warm up", "q")
			time.Sleep(2 * lease)
			test(newHost(t, server.Client(t)), newHost(t, server.Client(t)), newHost(t, server.Client(t)))
		})
	}
}

// A host dies before or after each of its steps, also with a pusher behind the other one.
func TestAHostDiesBetweenAnyTwoSteps(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	other := newHost(t, server.Client(t))
	for step := range 60 {
		user := mxid.UserID(fmt.Sprintf("@user%d:x", step))
		dying := newHost(t, server.Client(t))
		count := 0
		dying.before = func(redis.Cmder) error {
			if count++; count > step/2+1 && step%2 == 0 {
				dying.isStopped.Store(true)
				return errStopped
			}
			return nil
		}
		dying.after = func(redis.Cmder) error {
			if count > step/2+1 {
				dying.isStopped.Store(true)
				return errStopped
			}
			return nil
		}
		sent := map[string][]string{}
		record := func(pusher string) func(module.Notification) {
			return func(n module.Notification) {
				if !slices.Contains(sent[pusher], n.ID) {
					sent[pusher] = append(sent[pusher], n.ID)
				}
			}
		}
		var claims []*module.Claim
		for n := 1; n <= 3; n++ {
			done, err := dying.add(user, n, "p", "q")
			for err != nil { // the host's outbox is repeated by another one
				done, err = other.add(user, n, "p", "q")
				done.Claims = nil
			}
			for _, c := range done.Claims {
				if c != nil {
					claims = append(claims, c)
				}
			}
			if n == 2 && len(claims) > 0 {
				_ = dying.send(claims[0], record(claims[0].Pusher))
			}
		}
		for i, c := range claims {
			if i == 1 {
				_ = dying.Postpone(dying.Context(), c, lease/10, module.Trouble{}, step%3 == 0)
			} else {
				_ = dying.send(c, record(c.Pusher))
			}
		}
		for deadline := time.Now().Add(20 * lease); len(sent["p"])+len(sent["q"]) < 6 && time.Now().Before(deadline); time.Sleep(lease / 20) {
			claims, err := other.look("p", "q")
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range claims {
				if err := other.send(c, record(c.Pusher)); err != nil {
					t.Error(err)
				}
			}
		}
		for _, pusher := range []string{"p", "q"} {
			if want := []string{note(1).ID, note(2).ID, note(3).ID}; !slices.Equal(sent[pusher], want) {
				t.Fatalf("step %d: %s got %q", step, pusher, sent[pusher])
			}
		}
		if !dying.isStopped.Load() {
			if step < 20 {
				t.Errorf("the host has only %d steps", count)
			}
			return
		}
	}
}
