// Package queuetest has the contract of [module.DeliveryQueue] as tests for any
// implementation:
//
//	func TestQueue(t *testing.T) {
//		database := newDatabase(t)
//		queuetest.Queue(t, func(*testing.T) module.DeliveryQueue { return myqueue.New(database) })
//	}
//
// Each call of the function returns the queue of another host on the same database, with
// a new connection. At first, the database has no queue. [Memory] is a queue for other
// tests.
package queuetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
)

// Shards is the number of shards.
const Shards = 64

const (
	long     = time.Minute // longer than a test
	short    = 50 * time.Millisecond
	patience = 60 * time.Second

	maxBacklog   = 10
	maxUserBytes = 2000

	maxRoomBytes  = 1000
	maxShardBytes = 2000
)

type hosts func(*testing.T) module.DeliveryQueue

// Queue runs the contract of [module.DeliveryQueue].
func Queue(t *testing.T, newQueue func(*testing.T) module.DeliveryQueue) {
	for n, test := range []struct {
		name string
		run  func(t *testing.T, newQueue hosts, shard int)
	}{
		{"the number of shards is fixed", fixedShards},
		{"notifications are read as they were added", readAsAdded},
		{"a backlog ends with its last notification", ends},
		{"a backlog is claimed by the host that begins it", claimedAtOnce},
		{"a batch is added once in the window", addedOnce},
		{"a batch of many hosts is added once", addedOnceByMany},
		{"a batch and a text may be large", large},
		{"a backlog has one claim", oneClaim},
		{"a claim lapses, and fences its host", lapses},
		{"a claim is renewed", renewed},
		{"a backlog is postponed", postponed},
		{"an urgent notification ends a delay", urgent},
		{"a new generation of the pusher ends a delay", generation},
		{"a backlog has counts once", counts},
		{"a long backlog drops the least important notifications", bounded},
		{"a long backlog keeps young notifications", young},
		{"and drops no others in their place", youngAndOld},
		{"a user's bytes are bounded", userBytes},
		{"an event waits behind large events of its room", behind},
		{"the bytes of large events are bounded", fanOutBytes},
		{"a fan-out is added in parts, once", expanded},
		{"a backlog is dropped", dropped},
		{"what was sent last is kept", sentLast},
		{"backlogs are listed", listed},
		{"backlogs are summarized", summarized},
		{"backlogs are claimed by gate", byGate},
		{"a backlog moves to another gate", moved},
		{"gates without a claim hide none", manyGates},
		{"backlogs at a closed gate have to wait", closedGate},
		{"only some shards are asked", someShards},
		{"a context that has ended changes nothing", endedContext},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			opened := func(t *testing.T) module.DeliveryQueue {
				q := newQueue(t)
				persist(ctx, t, func() error { return q.Open(ctx, Shards) })
				return q
			}
			test.run(t, opened, 2*n) // and the next shard
		})
	}
}

// persist repeats do while the queue is not available.
func persist(ctx context.Context, t *testing.T, do func() error) {
	t.Helper()
	for {
		err := do()
		if err == nil {
			return
		}
		if fault.KindOf(err) != fault.Unavailable || errors.Is(err, module.ErrFenced) || ctx.Err() != nil {
			t.Fatal(fault.Details(err))
		}
	}
}

func id(n int) string { return fmt.Sprintf("%016d", n) }

func one(n int) module.Notification {
	return module.Notification{
		ID: id(n), Priority: module.HighPriority, Room: "room0000", Meta: fmt.Sprintf(`{"n":%d}`, n), Text: fmt.Sprintf("text %d", n),
	}
}

func to(target string, all ...module.Notification) (additions []module.Addition) {
	for _, n := range all {
		additions = append(additions, module.Addition{Target: target, Gate: gateOf(target), User: "user0000", Notification: n})
	}
	return additions
}

const gate = "https://push.example.org:443 im.example.app"

func gateOf(target string) string {
	if (module.Target{Name: target}).IsFanOut() {
		return module.FanOut
	}
	return gate
}

// look may claim at every gate.
func look(limit int, lease time.Duration) module.Look {
	return module.Look{Limit: limit, Lease: lease, Gate: func(string) (int, bool) { return 1000, false }}
}

func batch(shard int, additions ...module.Addition) module.DeliveryBatch {
	return module.DeliveryBatch{
		Shard: shard, Key: rand.Text(), Window: long, Lease: long, MaxBacklog: maxBacklog, MaxUserBytes: maxUserBytes, Additions: additions,
	}
}

func enqueue(t *testing.T, q module.DeliveryQueue, b module.DeliveryBatch) (e module.Enqueued) {
	t.Helper()
	persist(t.Context(), t, func() error {
		results := q.Enqueue(t.Context(), []module.DeliveryBatch{b})
		if len(results) != 1 {
			t.Fatalf("got %d results", len(results))
		}
		e = results[0].Value
		return results[0].Err
	})
	return e
}

func add(t *testing.T, q module.DeliveryQueue, shard int, target string, all ...module.Notification) {
	t.Helper()
	for _, n := range all {
		enqueue(t, q, batch(shard, to(target, n)...))
	}
}

// claim waits until the backlog is due, and releases others.
func claim(t *testing.T, q module.DeliveryQueue, shard int, target string, lease time.Duration) (b module.Backlog) {
	t.Helper()
	b, found := tryClaim(t, q, shard, target, lease, patience)
	if !found {
		t.Fatal("the backlog cannot be claimed")
	}
	return b
}

func tryClaim(t *testing.T, q module.DeliveryQueue, shard int, target string, lease, within time.Duration) (b module.Backlog, found bool) {
	t.Helper()
	for deadline := time.Now().Add(within); ; {
		claimed, err := q.Claim(t.Context(), look(100, lease))
		if err != nil && fault.KindOf(err) != fault.Unavailable {
			t.Fatal(err)
		}
		for _, c := range claimed.Backlogs {
			if c.Claim.Target == (module.Target{Shard: shard, Name: target}) {
				b, found = c, true
			} else {
				release(t, q, c.Claim)
			}
		}
		if found || time.Now().After(deadline) {
			return b, found
		}
		time.Sleep(time.Millisecond)
	}
}

func release(t *testing.T, q module.DeliveryQueue, c module.Claim) {
	t.Helper()
	if err := answer(t, func() error { return q.Postpone(t.Context(), c, c.Gate, 0, nil) }); err != nil {
		wantFenced(t, "repeated", err)
	}
}

func texts(t *testing.T, q module.DeliveryQueue, c module.Claim) (all []string) {
	t.Helper()
	for _, n := range read(t, q, c) {
		all = append(all, n.Text)
	}
	return all
}

func read(t *testing.T, q module.DeliveryQueue, c module.Claim) (all []module.Notification) {
	t.Helper()
	persist(t.Context(), t, func() (err error) {
		all, err = q.Read(t.Context(), c, 1000)
		return err
	})
	return all
}

func ids(t *testing.T, q module.DeliveryQueue, c module.Claim) string {
	t.Helper()
	var all []string
	for _, n := range read(t, q, c) {
		all = append(all, strings.TrimLeft(n.ID, "0"))
	}
	return strings.Join(all, " ")
}

func complete(t *testing.T, q module.DeliveryQueue, c module.Claim, id string) (left int) {
	t.Helper()
	persist(t.Context(), t, func() (err error) {
		left, err = q.Complete(t.Context(), c, id, module.Trouble{}, "")
		return err
	})
	return left
}

// completeLast removes the only notification. The call may have been repeated after a lost
// answer.
func completeLast(t *testing.T, q module.DeliveryQueue, c module.Claim, id string) (left int) {
	t.Helper()
	if err := answer(t, func() (err error) { left, err = q.Complete(t.Context(), c, id, module.Trouble{}, ""); return err }); err != nil {
		wantFenced(t, "repeated", err)
	}
	return left
}

func wantFenced(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, module.ErrFenced) {
		t.Errorf("%s: got error %v, want %v", what, err, module.ErrFenced)
	}
}

// answer repeats do until the queue has answered.
func answer(t *testing.T, do func() error) error {
	t.Helper()
	for {
		err := do()
		if err == nil || errors.Is(err, module.ErrFenced) || fault.KindOf(err) != fault.Unavailable {
			return err
		}
	}
}
