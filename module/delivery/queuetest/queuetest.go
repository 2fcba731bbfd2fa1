// Package queuetest holds the contract of [module.DeliveryQueue] as tests that run
// on any implementation, a host's own too:
//
//	func TestQueue(t *testing.T) {
//		database := newDatabase(t)
//		queuetest.Queue(t, func(*testing.T) module.DeliveryQueue { return myqueue.New(database) })
//	}
//
// Each call of the function returns the queue of another host on the same data. So
// return a new queue each time, with a connection of its own, on one database that
// holds no queue yet. Its log must have room for 1,000 entries of a shard.
package queuetest

import (
	"context"
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
)

// Shards is with how many the tests open the queue.
const Shards = 64

const (
	long     = time.Minute // for what must not end while a test runs
	short    = 50 * time.Millisecond
	patience = 60 * time.Second
)

// hosts makes the queue of another host.
type hosts func(*testing.T) module.DeliveryQueue

// Queue runs the contract of [module.DeliveryQueue].
func Queue(t *testing.T, newQueue func(*testing.T) module.DeliveryQueue) {
	for n, test := range []struct {
		name string
		run  func(t *testing.T, newQueue hosts, shard int)
	}{
		{"the number of shards is fixed", fixedShards},
		{"entries are read in order", readInOrder},
		{"data are kept byte for byte", bytesAreKept},
		{"an entry is added once in the window", addedOnce},
		{"many hosts add an entry once, and nobody reads it twice", addedOnceByMany},
		{"a lease has one owner", oneOwner},
		{"a lease ends, and each taking has a greater epoch", leasesEnd},
		{"a lease tells the last entry", lastEntry},
		{"a checkpoint is restored", restored},
		{"a checkpoint drops what is done", dropped},
		{"a former owner is fenced", fenced},
		{"of many owners no checkpoint is lost", owners},
		{"much may be held", muchHeld},
		{"an instruction is answered once, by the owner", instructed},
		{"an instruction that nobody answers is taken back", takenBack},
		{"hosts are told of each other", joined},
		{"hosts share what they know of gateways", gatewaysShared},
		{"entries of any host are heard of", heard},
		{"a context that has ended changes nothing", endedContext},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			persist(ctx, t, func() error { return newQueue(t).Open(ctx, Shards) })
			test.run(t, newQueue, 3*n) // and the two behind it
		})
	}
}

// unique returns the name of a host, or the key of an entry, that nobody has.
func unique() string { return rand.Text() }

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

// add adds an entry to one shard.
func add(t *testing.T, q module.DeliveryQueue, shard int, key, data string) {
	t.Helper()
	persist(t.Context(), t, func() error {
		return q.Append(t.Context(), key, long, map[int][]byte{shard: []byte(data)})
	})
}

// read returns entries of a shard.
func read(t *testing.T, q module.DeliveryQueue, shard int, after string, limit int) (entries []module.LogEntry) {
	t.Helper()
	persist(t.Context(), t, func() (err error) {
		entries, err = q.Read(t.Context(), shard, after, limit)
		return err
	})
	return entries
}

// data returns what entries of a shard hold.
func data(t *testing.T, q module.DeliveryQueue, shard int) (all []string) {
	t.Helper()
	for _, e := range read(t, q, shard, "", 10_000) {
		all = append(all, e.Data)
	}
	return all
}

// acquire asks for the lease of a shard.
func acquire(t *testing.T, q module.DeliveryQueue, host string, lasts time.Duration, shard int) (lease module.Lease) {
	t.Helper()
	persist(t.Context(), t, func() error {
		result, found := q.Acquire(t.Context(), host, lasts, []int{shard})[shard]
		if !found {
			t.Fatal("no result")
		}
		lease = result.Value
		return result.Err
	})
	return lease
}

// take is acquire of a lease that is free, or will be soon.
func take(t *testing.T, q module.DeliveryQueue, host string, lasts time.Duration, shard int) module.Lease {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if lease := acquire(t, q, host, lasts, shard); lease.Held {
			return lease
		}
	}
	t.Fatal("the lease is not to be had")
	return module.Lease{}
}

// checkpoint keeps progress.
func checkpoint(t *testing.T, q module.DeliveryQueue, shard int, epoch int64, progress module.Progress) {
	t.Helper()
	persist(t.Context(), t, func() error { return checkpointOne(t.Context(), q, shard, epoch, progress) })
}

// errNoResult is for a checkpoint that has no result for its shard.
var errNoResult = errors.New("no result")

func checkpointOne(ctx context.Context, q module.DeliveryQueue, shard int, epoch int64, progress module.Progress) error {
	progress.Epoch = epoch
	err, found := q.Checkpoint(ctx, map[int]module.Progress{shard: progress})[shard]
	if !found {
		return errNoResult
	}
	return err
}

// restore returns what was kept.
func restore(t *testing.T, q module.DeliveryQueue, shard int) (c module.Checkpointed) {
	t.Helper()
	persist(t.Context(), t, func() (err error) {
		c, err = q.Restore(t.Context(), shard)
		return err
	})
	return c
}

func wantUnavailable(t *testing.T, what string, err error) {
	t.Helper()
	if fault.KindOf(err) != fault.Unavailable {
		t.Errorf("%s: got error %v, want one of kind %s", what, err, fault.Unavailable)
	}
}
