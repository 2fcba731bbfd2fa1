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

// gate is a hook that holds the commands that are sent alone, until it opens,
// and has pipelines fail as long as that is wanted.
type gate struct {
	trips
	held    chan struct{} // tells of each that comes to it
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

// narrow is a store with one slot and a gate in it, and some users with texts.
func narrow(t *testing.T, users int) (*gate, userTexts, []mxid.UserID) {
	t.Helper()
	client := redistest.Single(t).Client(t)
	all := someUsers(users)
	plant(t, textStore(t, client, asUsual), all)
	g, store := newGate(), textStore(t, client, asUsual)
	client.AddHook(g)
	store.store.reads.slots = 1
	return g, store, all
}

// loads are loads under way.
type loads struct {
	running sync.WaitGroup
	store   userTexts
}

// begin loads the text of a user, and gives what came of it to report.
func (l *loads) begin(ctx context.Context, user mxid.UserID, report func(text string, err error)) {
	l.running.Go(func() {
		report(l.store.Load(ctx, user))
	})
}

// mustFind is a report that wants the user's text.
func mustFind(t *testing.T, user mxid.UserID) func(string, error) {
	return func(text string, err error) {
		if text != string(user)[:6] || err != nil {
			t.Errorf("%s: got %q, %v", user, text, err)
		}
	}
}

// waitFor waits until as many calls wait for one node.
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
	t.Fatal("nobody waits")
}

func (c *coalescer[T]) all() (queues []*queue[T]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range c.queues {
		queues = append(queues, q)
	}
	return queues
}

func TestACallThatFindsNoFreeSlotJoinsTheNextBatch(t *testing.T) {
	t.Parallel()
	const callers = maxPerBatch + 5
	g, store, users := narrow(t, callers)
	l := loads{store: store}
	l.begin(t.Context(), users[0], mustFind(t, users[0]))
	for _, user := range users {
		l.begin(t.Context(), user, mustFind(t, user))
	}
	store.store.reads.waitFor(t, callers)
	close(g.opens)
	l.running.Wait()
	if slices.Sort(g.sizes); !slices.Equal(g.sizes, []int{5, maxPerBatch}) {
		t.Errorf("keys in a pipeline: %v", g.sizes)
	}
}

func TestNobodyWaitsLongerThanTheirContext(t *testing.T) {
	t.Parallel()
	g, store, users := narrow(t, 4)
	l := loads{store: store}
	l.begin(t.Context(), users[0], mustFind(t, users[0]))
	<-g.held
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	l.begin(ctx, users[1], func(_ string, err error) { left <- err })
	store.store.reads.waitFor(t, 1)
	for _, user := range users[2:] {
		l.begin(t.Context(), user, mustFind(t, user))
	}
	store.store.reads.waitFor(t, 3)
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) || fault.KindOf(err) != fault.Unavailable {
		t.Errorf("the one who left got %v", err)
	}
	close(g.opens)
	l.running.Wait()
	if !slices.Equal(g.sizes, []int{2}) {
		t.Errorf("keys in a pipeline: %v", g.sizes)
	}
}

func TestWhatFailsTogetherIsAskedAgainAlone(t *testing.T) {
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

// TestThoseWhoLeaveTakeNobodyAlong has callers leave at any moment, also when it
// is on them to send what others wait for.
func TestThoseWhoLeaveTakeNobodyAlong(t *testing.T) {
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
			t.Errorf("left over: %d slots are free, %d callers wait", q.free, len(q.waiting))
		}
	}
}
