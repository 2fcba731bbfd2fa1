package delivery

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/retry"
)

// memoryQueue is a queue in memory for any number of hosts.
type memoryQueue struct {
	mu     sync.Mutex
	shards map[int]*memoryShard
	hosts  map[string]time.Time
	heard  map[*watcher]bool
	gates  map[string]memoryGateway
	opened int

	unfenced bool                                 // a queue that lets former owners write
	unleased bool                                 // a queue that gives a shard to whoever asks
	fail     func(op string) (before, lost error) // called for each operation; lost is after it was done
	writes   int                                  // checkpoints, of one shard each
	calls    int                                  // in which they were made
	reads    int
}

type watcher struct {
	appended func(int)
	gone     chan struct{}
}

type memoryGateway struct {
	module.SharedGateway
	expires time.Time // the zero time for never
}

type memoryShard struct {
	log   []module.LogEntry
	next  int
	seen  map[string]time.Time
	owner string
	epoch int64
	until time.Time
	kept  module.Checkpointed

	instructions, answers map[string][]byte // by id
	latest                string            // position of the last entry there ever was

	evicted int64
}

func newMemoryQueue() *memoryQueue {
	return &memoryQueue{
		shards: map[int]*memoryShard{}, hosts: map[string]time.Time{}, heard: map[*watcher]bool{}, gates: map[string]memoryGateway{},
		fail: func(string) (error, error) { return nil, nil },
	}
}

var errAway = module.Unavailable(errors.New("away"))

// do runs an operation, or fails before it, or loses its answer.
func (q *memoryQueue) do(ctx context.Context, op string, work func() error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	before, lost := q.fail(op)
	if err := cmp.Or(ctx.Err(), before); err != nil {
		return module.Unavailable(err)
	}
	err := work()
	if lost != nil {
		return module.Unavailable(lost)
	}
	return err
}

// failWith has operations fail from now on. Fail returns the errors of one: that of
// which it is refused, and that with which its answer gets lost.
func (q *memoryQueue) failWith(fail func(op string) (before, lost error)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.fail = fail
}

func (q *memoryQueue) shard(n int) *memoryShard {
	s := q.shards[n]
	if s == nil {
		s = &memoryShard{seen: map[string]time.Time{}, kept: module.Checkpointed{Held: map[string][]byte{}}}
		s.instructions, s.answers = map[string][]byte{}, map[string][]byte{}
		q.shards[n] = s
	}
	return s
}

func (q *memoryQueue) Open(ctx context.Context, shards int) error {
	return q.do(ctx, "open", func() error {
		if q.opened = cmp.Or(q.opened, shards); q.opened != shards {
			return fmt.Errorf("the queue has %d shards, not %d", q.opened, shards)
		}
		return nil
	})
}

func (q *memoryQueue) Append(ctx context.Context, key string, window time.Duration, entries map[int][]byte) error {
	var watchers []*watcher
	err := q.do(ctx, "append", func() error {
		watchers = slices.Collect(maps.Keys(q.heard))
		for n, data := range entries {
			s := q.shard(n)
			if at, found := s.seen[key]; found && time.Since(at) < window {
				continue
			}
			s.seen[key] = time.Now()
			s.next++
			s.latest = position(s.next)
			s.log = append(s.log, module.LogEntry{Position: s.latest, Added: time.Now(), Data: string(data)})
		}
		return nil
	})
	for _, w := range watchers {
		for n := range entries {
			w.appended(n)
		}
	}
	return err
}

func position(n int) string { return fmt.Sprintf("%08d", n) }

func (q *memoryQueue) Join(ctx context.Context, host string, lasts time.Duration) (hosts []string, err error) {
	err = q.do(ctx, "join", func() error {
		q.hosts[host] = time.Now().Add(lasts)
		maps.DeleteFunc(q.hosts, func(_ string, until time.Time) bool { return !time.Now().Before(until) })
		hosts = slices.Sorted(maps.Keys(q.hosts))
		return nil
	})
	return hosts, err
}

func (q *memoryQueue) Leave(ctx context.Context, host string) error {
	return q.do(ctx, "leave", func() error {
		delete(q.hosts, host)
		return nil
	})
}

func (q *memoryQueue) Acquire(ctx context.Context, host string, lasts time.Duration, shards []int) map[int]module.Result[module.Lease] {
	results := map[int]module.Result[module.Lease]{}
	err := q.do(ctx, "acquire", func() error {
		for _, n := range shards {
			s := q.shard(n)
			switch expired := !time.Now().Before(s.until); {
			case s.owner == host && !expired:
				s.until = time.Now().Add(lasts)
			case s.owner == "" || expired || q.unleased:
				s.owner, s.until = host, time.Now().Add(lasts)
				s.epoch++
			}
			lease := module.Lease{Held: s.owner == host, Epoch: s.epoch, Evicted: s.evicted, Instructions: maps.Clone(s.instructions)}
			if len(s.log) > 0 {
				lease.Last = s.log[len(s.log)-1].Position
			}
			results[n] = module.Result[module.Lease]{Value: lease}
		}
		return nil
	})
	for _, n := range shards {
		if err != nil {
			results[n] = module.Result[module.Lease]{Err: err}
		}
	}
	return results
}

func (q *memoryQueue) Release(ctx context.Context, host string, n int, epoch int64) error {
	return q.do(ctx, "release", func() error {
		if s := q.shard(n); s.owner == host && s.epoch == epoch {
			s.owner, s.until = "", time.Time{}
		}
		return nil
	})
}

func (q *memoryQueue) Restore(ctx context.Context, n int) (kept module.Checkpointed, err error) {
	err = q.do(ctx, "restore", func() error {
		kept = q.shard(n).kept
		kept.Held = maps.Clone(kept.Held)
		return nil
	})
	return kept, err
}

func (q *memoryQueue) Read(ctx context.Context, n int, after string, limit int) (entries []module.LogEntry, err error) {
	err = q.do(ctx, "read", func() error {
		q.reads++
		for _, e := range q.shard(n).log {
			if e.Position > after && len(entries) < limit {
				entries = append(entries, e)
			}
		}
		return nil
	})
	return entries, err
}

func (q *memoryQueue) Checkpoint(ctx context.Context, progress map[int]module.Progress) map[int]error {
	q.mu.Lock()
	q.calls++
	q.mu.Unlock()
	results := map[int]error{}
	for n, p := range progress {
		results[n] = q.checkpoint(ctx, n, p)
	}
	return results
}

func (q *memoryQueue) checkpoint(ctx context.Context, n int, p module.Progress) error {
	return q.do(ctx, "checkpoint", func() error {
		s := q.shard(n)
		onlyDone := p.Finished == nil && len(p.Held) == 0 && len(p.Answers) == 0
		if p.Epoch != s.epoch && !q.unfenced && !onlyDone {
			return module.ErrFenced
		}
		q.writes++
		if p.Finished != nil {
			s.kept.Finished = slices.Clone(p.Finished)
		}
		for id, data := range p.Held {
			if data == nil {
				delete(s.kept.Held, id)
			} else {
				s.kept.Held[id] = slices.Clone(data)
			}
		}
		for id, answer := range p.Answers {
			if _, waits := s.instructions[id]; waits {
				delete(s.instructions, id)
				s.answers[id] = answer
			}
		}
		s.log = slices.DeleteFunc(s.log, func(e module.LogEntry) bool { return slices.Contains(p.Done, e.Position) })
		return nil
	})
}

// Instruct asks from time to time, so that it works with a clock of its own.
func (q *memoryQueue) Instruct(ctx context.Context, instructions map[int][]byte) map[int]module.Result[[]byte] {
	id, results := rand.Text(), map[int]module.Result[[]byte]{}
	each := func(do func(n int, s *memoryShard)) {
		q.mu.Lock()
		defer q.mu.Unlock()
		for n := range instructions {
			do(n, q.shard(n))
		}
	}
	each(func(n int, s *memoryShard) {
		s.instructions[id] = instructions[n]
		results[n] = module.Result[[]byte]{Err: module.ErrNotAnswered}
	})
	for answered := 0; answered < len(instructions) && retry.Sleep(ctx, 100*time.Millisecond) == nil; {
		each(func(n int, s *memoryShard) {
			if answer, found := s.answers[id]; found {
				results[n] = module.Result[[]byte]{Value: answer}
				delete(s.answers, id)
				answered++
			}
		})
	}
	each(func(_ int, s *memoryShard) { delete(s.instructions, id) })
	return results
}

func (q *memoryQueue) ShareGateways(ctx context.Context, changes map[string]module.GatewayChange, lasts time.Duration) (known map[string]module.SharedGateway, err error) {
	err = q.do(ctx, "share", func() error {
		maps.DeleteFunc(q.gates, func(_ string, g memoryGateway) bool { return !g.expires.IsZero() && !g.expires.After(time.Now()) })
		for name, change := range changes {
			q.change(name, change, lasts)
		}
		known = map[string]module.SharedGateway{}
		for name, g := range q.gates {
			known[name] = g.SharedGateway
		}
		return nil
	})
	return known, err
}

func (q *memoryQueue) change(name string, change module.GatewayChange, lasts time.Duration) {
	g, found := q.gates[name]
	now := time.Now()
	if change.Retry {
		g.Until = time.Time{}
	}
	waits := g.Until.After(now)
	switch {
	case found && g.expires.IsZero(), !found && (change.State == "" || change.State == module.GatewayOpen):
		return
	case change.State == module.GatewayOpen:
		if !waits {
			delete(q.gates, name)
		}
		return
	case change.State == module.GatewayWaiting:
		g.State, g.Until, g.Status = change.State, later(g.Until, now.Add(change.Wait)), change.Status
	case change.State == module.GatewayClosed && !waits:
		g.State, g.Until, g.Status = change.State, time.Time{}, change.Status
	}
	if !found {
		g.Since = now
	}
	g.expires = later(now, g.Until).Add(lasts)
	q.gates[name] = g
}

// gateways are those that hosts have told of.
func (q *memoryQueue) gateways() map[string]memoryGateway {
	q.mu.Lock()
	defer q.mu.Unlock()
	return maps.Clone(q.gates)
}

// hold is an operator's.
func (q *memoryQueue) hold(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.gates[name] = memoryGateway{SharedGateway: module.SharedGateway{State: module.GatewayHeld, Since: time.Now()}}
}

// open is an operator's.
func (q *memoryQueue) open(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.gates, name)
}

func (q *memoryQueue) Watch(ctx context.Context, watching func(), appended func(int)) error {
	w := &watcher{appended: appended, gone: make(chan struct{})}
	if err := q.do(ctx, "watch", func() error {
		q.heard[w] = true
		return nil
	}); err != nil {
		return err
	}
	watching()
	<-ctx.Done()
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.heard, w)
	return ctx.Err()
}

// counts returns how much is left in the logs, and how many pushers are held.
func (q *memoryQueue) counts() (entries, held int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range q.shards {
		entries += len(s.log)
		held += len(s.kept.Held)
	}
	return entries, held
}

// checkpoints returns how many were made, and in how many calls.
func (q *memoryQueue) checkpoints() (writes, calls int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.writes, q.calls
}

var _ module.DeliveryQueue = (*memoryQueue)(nil)
