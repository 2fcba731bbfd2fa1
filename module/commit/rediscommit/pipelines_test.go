package rediscommit

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
)

// gate delays single commands until it opens. Pipelines fail with refuses, unless it is
// nil.
type gate struct {
	trips
	held    chan struct{} // receives one element for each delayed command
	opens   chan struct{}
	refuses error
}

func newGate() *gate { return &gate{held: make(chan struct{}, 10_000), opens: make(chan struct{})} }

func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		if command.Name() == "get" {
			g.held <- struct{}{}
			<-g.opens
		}
		return next(ctx, command)
	}
}

func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return g.trips.ProcessPipelineHook(func(ctx context.Context, commands []redis.Cmder) error {
		if g.refuses == nil || commands[0].Name() != "get" {
			return next(ctx, commands)
		}
		for _, command := range commands {
			command.SetErr(g.refuses)
		}
		return g.refuses
	})
}

func narrow(t *testing.T, users int) (*gate, userTexts, []mxid.UserID) {
	t.Helper()
	client := redistest.Single(t).Client(t)
	all := someUsers(users)
	plant(t, textStore(t, client, defaults), all)
	g, store := newGate(), textStore(t, client, defaults)
	client.AddHook(g)
	store.store.reads.slots = 1
	return g, store, all
}

type loads struct {
	running sync.WaitGroup
	store   userTexts
}

func (l *loads) begin(ctx context.Context, user mxid.UserID, report func(text string, err error)) {
	l.running.Go(func() {
		report(l.store.Load(ctx, user))
	})
}

func mustFind(t *testing.T, user mxid.UserID) func(string, error) {
	return func(text string, err error) {
		if text != string(user)[:6] || err != nil {
			t.Errorf("%s: got %q, %v", user, text, err)
		}
	}
}

func (c *coalescer[T]) waitFor(t *testing.T, calls int) {
	t.Helper()
	for start := time.Now(); time.Since(start) < never; time.Sleep(time.Millisecond) {
		for _, q := range c.all() {
			q.mu.Lock()
			n := len(q.waiting)
			q.mu.Unlock()
			if n == calls {
				return
			}
		}
	}
	t.Fatalf("fewer than %d calls wait", calls)
}

func (c *coalescer[T]) all() (queues []*queue[T]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range c.queues {
		queues = append(queues, q)
	}
	return queues
}

func TestCallsWithoutAFreeSlotJoinTheNextBatch(t *testing.T) {
	t.Parallel()
	const callers = maxBatch + 5
	g, store, users := narrow(t, callers)
	l := loads{store: store}
	l.begin(t.Context(), users[0], mustFind(t, users[0]))
	for _, user := range users {
		l.begin(t.Context(), user, mustFind(t, user))
	}
	store.store.reads.waitFor(t, callers)
	close(g.opens)
	l.running.Wait()
	if slices.Sort(g.sizes); !slices.Equal(g.sizes, []int{5, maxBatch}) {
		t.Errorf("keys in a pipeline: %v", g.sizes)
	}
}

func TestWaitingCallEndsWithItsContext(t *testing.T) {
	t.Parallel()
	g, store, users := narrow(t, 4)
	l := loads{store: store}
	l.begin(t.Context(), users[0], mustFind(t, users[0]))
	<-g.held
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := make(chan error, 1)
	l.begin(ctx, users[1], func(_ string, err error) { cancelled <- err })
	store.store.reads.waitFor(t, 1)
	for _, user := range users[2:] {
		l.begin(t.Context(), user, mustFind(t, user))
	}
	store.store.reads.waitFor(t, 3)
	cancel()
	if err := <-cancelled; !errors.Is(err, context.Canceled) || fault.KindOf(err) != fault.Unavailable {
		t.Errorf("the cancelled call got %v", err)
	}
	close(g.opens)
	l.running.Wait()
	if !slices.Equal(g.sizes, []int{2}) {
		t.Errorf("keys in a pipeline: %v", g.sizes)
	}
}

func TestReadsOfAFailedBatchAreRepeatedAlone(t *testing.T) {
	t.Parallel()
	g, store, users := narrow(t, 5)
	g.refuses = errors.New("connection lost")
	l := loads{store: store}
	for _, user := range users {
		l.begin(t.Context(), user, mustFind(t, user))
	}
	store.store.reads.waitFor(t, len(users)-1)
	close(g.opens)
	l.running.Wait()
	if !slices.Equal(g.sizes, []int{len(users) - 1}) {
		t.Errorf("keys in a pipeline: %v", g.sizes)
	}
}

// Calls may end while they have to send the batch for others.
func TestCancelledCallsDoNotAffectOthers(t *testing.T) {
	t.Parallel()
	g, store, users := narrow(t, 50)
	close(g.opens)
	l := loads{store: store}
	for round := range 40 {
		for i, user := range users {
			if i%3 > 0 {
				l.begin(t.Context(), user, mustFind(t, user))
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), rand.N(time.Duration(round+1)*50*time.Microsecond))
			l.begin(ctx, user, func(text string, err error) {
				defer cancel()
				if err == nil || ctx.Err() == nil {
					mustFind(t, user)(text, err)
				}
			})
		}
		l.running.Wait()
	}
	for _, q := range store.store.reads.all() {
		if q.free != 1 || len(q.waiting) > 0 {
			t.Errorf("at the end, %d slots are free and %d calls wait", q.free, len(q.waiting))
		}
	}
}
