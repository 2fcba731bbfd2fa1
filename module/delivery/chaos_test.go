package delivery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// faultyHost is a host whose connection to the queue and whose process may fail.
type faultyHost struct {
	*memoryQueue
	w     *world
	chaos *chaos

	mu   sync.Mutex
	dead chan struct{} // closed when the process is killed
	away bool          // the queue cannot be reached
	last map[int]int   // the number of the last checkpoint of each shard
	made int

	delivery *Delivery
	stop     func()
}

// chaos is what goes wrong, and how often.
type chaos struct {
	mu       sync.Mutex
	rng      *rand.Rand
	on       atomic.Bool
	failures int           // of 100 operations of the queue
	refusals int           // of 100 requests
	delay    time.Duration // of 1 in 50 checkpoints
}

func (c *chaos) n(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.IntN(n)
}

func (c *chaos) happens(percent int) bool { return c.on.Load() && c.n(100) < percent }

var errCut = module.Unavailable(errors.New("the connection is cut"))

// try decides what becomes of an operation: nothing, none at all, or no answer.
func (h *faultyHost) try(ctx context.Context) (before, after error) {
	h.mu.Lock()
	away := h.away
	h.mu.Unlock()
	select {
	case <-h.dead:
		return errCut, errCut
	default:
	}
	if away {
		select { // it hangs
		case <-ctx.Done():
		case <-h.dead:
		}
		return errCut, errCut
	}
	if h.chaos.happens(h.chaos.failures) {
		if h.chaos.n(2) == 0 {
			return errCut, nil
		}
		return nil, errCut
	}
	return nil, nil
}

func try[T any](ctx context.Context, h *faultyHost, do func() (T, error)) (T, error) {
	var none T
	before, after := h.try(ctx)
	if before != nil {
		return none, before
	}
	value, err := do()
	if after != nil {
		return none, after
	}
	return value, err
}

func (h *faultyHost) Append(ctx context.Context, key string, window time.Duration, entries map[int][]byte) error {
	_, err := try(ctx, h, func() (any, error) { return nil, h.memoryQueue.Append(ctx, key, window, entries) })
	return err
}

func (h *faultyHost) Join(ctx context.Context, host string, lasts time.Duration) ([]string, error) {
	return try(ctx, h, func() ([]string, error) { return h.memoryQueue.Join(ctx, host, lasts) })
}

func (h *faultyHost) Leave(ctx context.Context, host string) error {
	_, err := try(ctx, h, func() (any, error) { return nil, h.memoryQueue.Leave(ctx, host) })
	return err
}

func (h *faultyHost) Acquire(ctx context.Context, host string, lasts time.Duration, shards []int) map[int]module.Result[module.Lease] {
	leases, err := try(ctx, h, func() (map[int]module.Result[module.Lease], error) {
		return h.memoryQueue.Acquire(ctx, host, lasts, shards), nil
	})
	if err != nil {
		leases = map[int]module.Result[module.Lease]{}
		for _, n := range shards {
			leases[n] = module.Result[module.Lease]{Err: err}
		}
	}
	return leases
}

func (h *faultyHost) Release(ctx context.Context, host string, shard int, epoch int64) error {
	_, err := try(ctx, h, func() (any, error) { return nil, h.memoryQueue.Release(ctx, host, shard, epoch) })
	return err
}

func (h *faultyHost) Restore(ctx context.Context, shard int) (module.Checkpointed, error) {
	return try(ctx, h, func() (module.Checkpointed, error) { return h.memoryQueue.Restore(ctx, shard) })
}

func (h *faultyHost) Read(ctx context.Context, shard int, after string, limit int) ([]module.LogEntry, error) {
	return try(ctx, h, func() ([]module.LogEntry, error) { return h.memoryQueue.Read(ctx, shard, after, limit) })
}

// Checkpoint may be on its way for longer than the lease lasts. It has no effect
// after the next one of this host.
func (h *faultyHost) Checkpoint(ctx context.Context, progress map[int]module.Progress) map[int]error {
	results := map[int]error{}
	var lock sync.Mutex
	var running sync.WaitGroup
	for shard, p := range progress {
		running.Go(func() {
			err := h.checkpoint(ctx, shard, p)
			lock.Lock()
			defer lock.Unlock()
			results[shard] = err
		})
	}
	running.Wait()
	return results
}

func (h *faultyHost) checkpoint(ctx context.Context, shard int, p module.Progress) error {
	h.mu.Lock()
	h.made++
	number := h.made
	h.mu.Unlock()
	apply := func(ctx context.Context) error {
		h.mu.Lock()
		late := h.last[shard] > number
		h.last[shard] = max(h.last[shard], number)
		h.mu.Unlock()
		if late {
			return nil
		}
		return h.memoryQueue.checkpoint(ctx, shard, p)
	}
	if h.chaos.on.Load() && h.chaos.delay > 0 && h.chaos.n(50) == 0 {
		go func() {
			time.Sleep(h.chaos.delay)
			apply(context.Background())
		}()
		<-ctx.Done()
		return errCut
	}
	_, err := try(ctx, h, func() (any, error) { return nil, apply(ctx) })
	return err
}

func (h *faultyHost) ShareGateways(ctx context.Context, changes map[string]module.GatewayChange, lasts time.Duration) (map[string]module.SharedGateway, error) {
	return try(ctx, h, func() (map[string]module.SharedGateway, error) {
		return h.memoryQueue.ShareGateways(ctx, changes, lasts)
	})
}

// Post is cut off when the process is killed.
func (h *faultyHost) Post(ctx context.Context, url string, body []byte) (module.GatewayAnswer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	select {
	case <-h.dead:
		return module.GatewayAnswer{}, errCut
	default:
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-h.dead:
			cancel()
		case <-ended:
		}
	}()
	return h.w.Post(ctx, url, body)
}

func (h *faultyHost) kill() {
	close(h.dead)
	h.stop()
}

func (h *faultyHost) setAway(away bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.away = away
}

// newFaultyHost starts a host.
func newFaultyHost(w *world, c *chaos) *faultyHost {
	h := &faultyHost{memoryQueue: w.queue, w: w, chaos: c, dead: make(chan struct{}), last: map[int]int{}}
	h.delivery, h.stop = w.hostOn(h, h)
	return h
}

// round is one run of hosts that are killed and cut off while events come.
type round struct {
	*world
	chaos  *chaos
	hosts  []*faultyHost
	events int
	breaks int // kills and cuts, each of which may double what was under way
}

const (
	chaosUsers  = 24
	chaosEvents = 300
)

func newRound(w *world, seed uint64) *round {
	w.cfg.MaxInFlight = 16
	c := &chaos{rng: rand.New(rand.NewPCG(seed, 1)), failures: 4, refusals: 10, delay: 7 * time.Second}
	c.on.Store(true)
	r := &round{world: w, chaos: c}
	for i := range chaosUsers {
		w.set(name(i), key(i), fmt.Sprintf("gw%d", i%3))
		if i%4 == 0 {
			w.set(name(i), "second-"+key(i), "gw1")
		}
	}
	for i := range 3 {
		w.answer(fmt.Sprintf("gw%d", i), func(ctx context.Context, _ sent) (module.GatewayAnswer, error) {
			timer := time.NewTimer(time.Duration(c.n(60)) * time.Millisecond)
			defer timer.Stop()
			select {
			case <-ctx.Done():
				return module.GatewayAnswer{}, ctx.Err()
			case <-timer.C:
			}
			if c.happens(c.refusals) {
				return module.GatewayAnswer{Status: 502}, nil
			}
			return module.GatewayAnswer{Status: 200}, nil
		})
	}
	for range 3 {
		r.hosts = append(r.hosts, newFaultyHost(w, c))
	}
	return r
}

// run hands events over, one after the other, while hosts fail.
func (r *round) run() {
	for r.events < chaosEvents {
		i := r.chaos.n(len(r.hosts))
		switch r.chaos.n(40) {
		case 0:
			r.breaks++
			r.hosts[i].kill()
			r.hosts[i] = newFaultyHost(r.world, r.chaos)
		case 1:
			r.breaks++
			h := r.hosts[i]
			h.setAway(true)
			time.Sleep(time.Duration(1+r.chaos.n(8)) * time.Second)
			h.setAway(false)
		case 2:
			h := r.hosts[i]
			h.stop()
			r.hosts[i] = newFaultyHost(r.world, r.chaos)
		default:
			r.send(i)
		}
	}
	r.chaos.on.Store(false)
}

// send hands an event over to users, by any host, until one has taken it.
func (r *round) send(host int) {
	var users []mxid.UserID
	for i := range chaosUsers {
		if r.events%3 == 0 || r.chaos.n(3) == 0 {
			users = append(users, name(i))
		}
	}
	for r.tryNotify(r.hosts[host].delivery, r.events, "!room:h", users...) != nil {
		host = (host + 1) % len(r.hosts)
		time.Sleep(100 * time.Millisecond)
	}
	for _, u := range users {
		r.expected[u] = append(r.expected[u], fmt.Sprintf("$%d", r.events))
	}
	r.events++
	time.Sleep(time.Duration(r.chaos.n(300)) * time.Millisecond)
}

// settle waits until everything was sent.
func (r *round) settle() (left string) {
	for range 3600 {
		entries, held := r.queue.counts()
		if entries == 0 && held == 0 {
			return ""
		}
		left = fmt.Sprintf("%d entries and %d held pushers are left", entries, held)
		time.Sleep(time.Second)
	}
	return left
}

// judge returns what is wrong.
func (r *round) judge(left string) (faults []string) {
	if left != "" {
		faults = append(faults, left)
	}
	if r.overlaps > 0 {
		faults = append(faults, fmt.Sprintf("%d requests for a pusher that had one under way", r.overlaps))
	}
	doubled := 0
	for i := range chaosUsers {
		pushkeys := []string{key(i)}
		if i%4 == 0 {
			pushkeys = append(pushkeys, "second-"+key(i))
		}
		for _, pushkey := range pushkeys {
			var first []string
			for _, p := range r.all() {
				if p.pushkey != pushkey || p.status != 200 {
					continue
				}
				if slices.Contains(first, p.event) {
					doubled++
				} else {
					first = append(first, p.event)
				}
			}
			if want := r.expected[name(i)]; !slices.Equal(first, want) {
				at := 0
				for at < min(len(first), len(want)) && first[at] == want[at] {
					at++
				}
				faults = append(faults, fmt.Sprintf("%s got %d of %d, from %d on %v, want %v", pushkey, len(first), len(want), at,
					first[at:min(at+8, len(first))], want[at:min(at+8, len(want))]))
			}
		}
	}
	if most := r.breaks * (r.cfg.MaxInFlight + savedAhead); doubled > most {
		faults = append(faults, fmt.Sprintf("%d are doubled after %d breaks, want at most %d", doubled, r.breaks, most))
	}
	r.t.Logf("%d breaks, %d doubled, dropped %v", r.breaks, doubled, r.dropped)
	return faults
}

func (r *round) end() {
	for _, h := range r.hosts {
		h.stop()
	}
	time.Sleep(time.Minute) // what is still on its way arrives
}

// Hosts are killed, cut off and replaced, answers get lost, checkpoints arrive when
// another host has the shard: nothing is lost, and everything arrives in order.
func TestNothingIsLostWhenHostsFail(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRound(newWorld(t), seed)
				r.run()
				for _, fault := range r.judge(r.settle()) {
					t.Error(fault)
				}
				r.end()
			})
		})
	}
}

// The test before this one can fail: it does where the queue takes what former
// owners write, and where it gives a shard to two owners at a time.
func TestWithoutFencingSomethingIsWrong(t *testing.T) {
	for name, spoil := range map[string]func(*memoryQueue){
		"checkpoints": func(q *memoryQueue) { q.unfenced = true },
		"leases":      func(q *memoryQueue) { q.unleased, q.unfenced = true, true },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20) {
				wrong := false
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					spoil(w.queue)
					r := newRound(w, seed)
					r.run()
					wrong = len(r.judge(r.settle())) > 0
					r.end()
				})
				if wrong {
					return
				}
			}
			t.Error("nobody noticed")
		})
	}
}
