package redisclient

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redistest"
)

const never = 30 * time.Second

func TestWaitBeforeRetryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for try := range 200 {
			if began := time.Now(); !waitBeforeRetry(t.Context(), try) || time.Since(began) > 100*time.Millisecond {
				t.Errorf("try %d: waited %v", try, time.Since(began))
			}
		}
	})
}

// gate delays the commands until it opens. Pipelines of several commands then fail with
// refuses, unless it is nil.
type gate struct {
	command string
	held    chan struct{} // receives one element for each delayed sending
	opens   chan struct{}
	refuses error

	mu    sync.Mutex
	sizes []int // of the sendings
}

func (g *gate) DialHook(next redis.DialHook) redis.DialHook { return next }

func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		g.delay(command)
		return next(ctx, command)
	}
}

func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		g.delay(commands...)
		if g.refuses == nil || commands[0].Name() != g.command || len(commands) == 1 {
			return next(ctx, commands)
		}
		for _, command := range commands {
			command.SetErr(g.refuses)
		}
		return g.refuses
	}
}

func (g *gate) delay(commands ...redis.Cmder) {
	if commands[0].Name() != g.command {
		return
	}
	g.mu.Lock()
	g.sizes = append(g.sizes, len(commands))
	g.mu.Unlock()
	g.held <- struct{}{}
	<-g.opens
}

// lane has one command on its way, so that further ones wait.
type lane struct {
	*gate
	client    *redis.Client
	pipelines *Pipelines
	running   sync.WaitGroup
	isWrite   bool
}

var lanes = map[string]bool{"reads": false, "writes": true}

func newLane(t *testing.T, isWrite bool, refuses error) *lane {
	t.Helper()
	// With two connections, a late batch keeps its slot.
	client := redis.NewClient(&redis.Options{Addr: redistest.Single(t).Addr(), ContextTimeoutEnabled: true, PoolSize: 2})
	t.Cleanup(func() { client.Close() })
	l := &lane{client: client, pipelines: NewPipelines(client, nil), isWrite: isWrite}
	one := func(*redis.Client) int { return 1 }
	l.pipelines.reads.slots, l.pipelines.writes.slots = one, one
	l.gate = &gate{command: "get", held: make(chan struct{}, 10_000), opens: make(chan struct{}), refuses: refuses}
	if isWrite {
		l.command = "incr"
	}
	client.AddHook(l.gate)
	l.begin(t.Context(), "first", mustWork(t))
	<-l.held
	return l
}

// begin writes a key, or reads a key that is missing.
func (l *lane) begin(ctx context.Context, key string, report func(error)) {
	l.running.Go(func() {
		var err error
		if l.isWrite {
			err = l.pipelines.Do(ctx, Kind{}, &Command{Key: key, IsSingle: true, Queue: func(ctx context.Context, to Sender) func() error {
				return to.Incr(ctx, key).Err
			}})[0]
		} else {
			err = l.pipelines.Do(ctx, Kind{IsRead: true}, &Command{Key: key, IsSingle: true, Queue: func(ctx context.Context, to Sender) func() error {
				return to.Get(ctx, key).Err
			}})[0]
		}
		if errors.Is(err, redis.Nil) {
			err = nil
		}
		report(err)
	})
}

func mustWork(t *testing.T) func(error) {
	return func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
}

func (l *lane) coalescer() *coalescer {
	return l.pipelines.coalescerOf(Kind{IsRead: !l.isWrite})
}

func (l *lane) waitFor(t *testing.T, calls int) {
	t.Helper()
	for start := time.Now(); time.Since(start) < never; time.Sleep(time.Millisecond) {
		q := l.coalescer().queueOf(l.client)
		q.mu.Lock()
		n := len(q.waiting)
		q.mu.Unlock()
		if n == calls {
			return
		}
	}
	t.Fatalf("fewer than %d calls wait", calls)
}

func forEachLane(t *testing.T, do func(t *testing.T, isWrite bool)) {
	t.Parallel()
	for name, isWrite := range lanes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			do(t, isWrite)
		})
	}
}

func (l *lane) wantSizes(t *testing.T, want ...int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.Sort(l.sizes); !slices.Equal(l.sizes, want) {
		t.Errorf("commands in a pipeline: %v, want %v", l.sizes, want)
	}
}

func TestCommandsWithoutAFreeSlotJoinTheNextBatch(t *testing.T) {
	forEachLane(t, func(t *testing.T, isWrite bool) {
		const callers = maxBatch + 5
		l := newLane(t, isWrite, nil)
		for n := range callers {
			l.begin(t.Context(), strconv.Itoa(n), mustWork(t))
		}
		l.waitFor(t, callers)
		close(l.opens)
		l.running.Wait()
		l.wantSizes(t, 1, 5, maxBatch)
		for n := range callers {
			if got := l.client.Get(t.Context(), strconv.Itoa(n)).Val(); isWrite && got != "1" {
				t.Errorf("write %d was done %q times", n, got)
			}
		}
	})
}

func TestWaitingCommandEndsWithItsContext(t *testing.T) {
	forEachLane(t, func(t *testing.T, isWrite bool) {
		l := newLane(t, isWrite, nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancelled := make(chan error, 1)
		l.begin(ctx, "cancelled", func(err error) { cancelled <- err })
		l.waitFor(t, 1)
		l.begin(t.Context(), "other", mustWork(t))
		l.waitFor(t, 2)
		cancel()
		if err := <-cancelled; !errors.Is(err, context.Canceled) {
			t.Errorf("the cancelled command got %v", err)
		}
		close(l.opens)
		l.running.Wait()
		l.wantSizes(t, 1, 1)
		if got := l.client.Exists(t.Context(), "cancelled").Val(); got != 0 {
			t.Error("the cancelled write was sent")
		}
	})
}

func TestAContextThatHasEndedSendsNothing(t *testing.T) {
	forEachLane(t, func(t *testing.T, isWrite bool) {
		l := newLane(t, isWrite, nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		queue := func(context.Context, Sender) func() error {
			t.Error("a command was queued")
			return func() error { return nil }
		}
		close(l.opens)
		l.running.Wait() // a slot is free
		for _, err := range l.pipelines.Do(ctx, Kind{IsRead: !isWrite}, &Command{Key: "a", Queue: queue}, &Command{Key: "b", Queue: queue}) {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got error %v", err)
			}
		}
	})
}

func TestCommandsOfAFailedBatchAreRepeated(t *testing.T) {
	forEachLane(t, func(t *testing.T, isWrite bool) {
		l := newLane(t, isWrite, errors.New("connection lost"))
		const callers = 5
		failed := make(chan error, callers)
		for n := range callers {
			l.begin(t.Context(), strconv.Itoa(n), func(err error) { failed <- err })
		}
		l.waitFor(t, callers)
		close(l.opens)
		l.running.Wait()
		for n := range callers {
			if err := <-failed; err != nil {
				t.Error(err)
			}
			if got := l.client.Get(t.Context(), strconv.Itoa(n)).Val(); isWrite && got != "1" {
				t.Errorf("write %d was done %q times", n, got)
			}
		}
	})
}

// A server, a proxy or a path may accept a connection and never reply.
func TestSilentConnectionsDelayOnlyTheirOwnCommands(t *testing.T) {
	forEachLane(t, func(t *testing.T, isWrite bool) {
		proxy := redistest.NewProxy(t, redistest.Single(t))
		client := proxy.Client(t, func(o *redis.Options) { o.ReadTimeout, o.PoolSize = 2*never, 12 })
		l := &lane{client: client, pipelines: NewPipelines(client, nil), isWrite: isWrite}
		slots := l.coalescer().slots(client)
		var faults []*redistest.Fault
		for n := range slots {
			key := "silent" + strconv.Itoa(n)
			fault := proxy.HoldRequest(1, "GET", "INCR").With(key)
			l.begin(t.Context(), key, mustWork(t))
			<-fault.Struck()
			faults = append(faults, fault)
		}
		const callers = 3 * maxBatch
		done := make(chan struct{}, callers)
		for n := range callers {
			l.begin(t.Context(), strconv.Itoa(n), func(err error) {
				mustWork(t)(err)
				done <- struct{}{}
			})
		}
		for began := time.Now(); len(done) < callers; time.Sleep(time.Millisecond) {
			if time.Since(began) > never/3 {
				t.Errorf("%d of %d commands wait for %d silent connections", callers-len(done), callers, slots)
				break
			}
		}
		for _, fault := range faults {
			fault.Release()
		}
		l.running.Wait()
	})
}

// A web server goes on after the panic of a request.
func TestAPanicOfTheSenderDoesNotCountAsDone(t *testing.T) {
	forEachLane(t, func(t *testing.T, isWrite bool) {
		l := newLane(t, isWrite, nil)
		l.running.Go(func() {
			defer func() { _ = recover() }()
			_ = l.pipelines.Do(t.Context(), Kind{IsRead: !isWrite}, &Command{Key: "panics", Queue: func(context.Context, Sender) func() error {
				panic("a hook of the host")
			}})
		})
		l.waitFor(t, 1)
		const callers = 5
		for n := range callers {
			l.begin(t.Context(), strconv.Itoa(n), mustWork(t))
		}
		l.waitFor(t, callers+1)
		close(l.opens)
		l.running.Wait()
		l.wantSizes(t, 1, 1, 1, 1, 1, 1)
		for n := range callers {
			if got := l.client.Get(t.Context(), strconv.Itoa(n)).Val(); isWrite && got != "1" {
				t.Errorf("write %d got no error, but was done %q times", n, got)
			}
		}
	})
}

// A write without a reply may have been done: the caller decides.
func TestAWriteWithoutAReplyIsNotRepeated(t *testing.T) {
	t.Parallel()
	proxy := redistest.NewProxy(t, redistest.Single(t))
	client := proxy.Client(t, func(o *redis.Options) { o.MaxRetries = -1 })
	p := NewPipelines(client, nil)
	proxy.CutReply(1, "INCR")
	if err := p.Do(t.Context(), Kind{}, write("key"))[0]; err == nil {
		t.Error("no error")
	}
	proxy.CutReply(1, "GET")
	proxy.CutReply(2, "GET")
	if err := p.Do(t.Context(), Kind{IsRead: true}, read("key"))[0]; err != nil {
		t.Errorf("the read is not repeated: %v", err)
	}
	if got := client.Get(t.Context(), "key").Val(); got != "1" {
		t.Errorf("the write was done %s times", got)
	}
}

// Calls may end while they have to send the batch for others.
func TestCancelledCallsDoNotAffectOthers(t *testing.T) {
	forEachLane(t, func(t *testing.T, isWrite bool) {
		l := newLane(t, isWrite, nil)
		close(l.opens)
		for round := range 40 {
			for i := range 50 {
				key := strconv.Itoa(i)
				if i%3 > 0 {
					l.begin(t.Context(), key, mustWork(t))
					continue
				}
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(time.Duration(round+1)*50*time.Microsecond))
				l.begin(ctx, key, func(err error) {
					defer cancel()
					if err != nil && ctx.Err() == nil {
						t.Error(err)
					}
				})
			}
			l.running.Wait()
		}
		if q := l.coalescer().queueOf(l.client); len(q.sending) > 0 || len(q.waiting) > 0 {
			t.Errorf("at the end, %d batches are under way and %d calls wait", len(q.sending), len(q.waiting))
		}
	})
}

// read and write are commands for one key.
func read(key string) *Command {
	return &Command{Key: key, IsSingle: true, Queue: func(ctx context.Context, to Sender) func() error { return to.Get(ctx, key).Err }}
}

func write(key string) *Command {
	return &Command{Key: key, IsSingle: true, Queue: func(ctx context.Context, to Sender) func() error { return to.Incr(ctx, key).Err }}
}

// The cluster client learns of a master only from CLUSTER SLOTS, which lists none without slots.
func TestKeysOnAMasterWithoutSlotsAreReadAndWritten(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 1)
	client := cluster.Client(t)
	p := NewPipelines(client, nil)
	newcomer := cluster.Newcomer(t)
	ctx, cancel := context.WithTimeout(t.Context(), never)
	defer cancel()
	if err := client.Incr(ctx, movedKey).Err(); err != nil {
		t.Fatal(err)
	}
	move, err := cluster.BeginMove(ctx, movedSlot, newcomer)
	if err == nil {
		err = move.MoveKeys(ctx, movedKey)
	}
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	for range 2 * maxBatch { // some of these share a pipeline
		running.Go(func() {
			for _, err := range p.Do(ctx, Kind{}, write(movedKey), write("other"), write("new{"+movedKey+"}")) {
				mustWork(t)(err)
			}
			mustWork(t)(p.Do(ctx, Kind{IsRead: true}, read(movedKey))[0])
			mustWork(t)(p.Do(ctx, Kind{Durability: Durability{Replicas: 1, Timeout: time.Second}}, write(movedKey))[0])
		})
	}
	running.Wait()
	mustWork(t)(move.Finish(ctx))
	for key, want := range map[string]int{movedKey: 1 + 4*maxBatch, "other": 2 * maxBatch, "new{" + movedKey + "}": 2 * maxBatch} {
		if got := client.Get(ctx, key).Val(); got != strconv.Itoa(want) {
			t.Errorf("%s: got %s, want %d", key, got, want)
		}
	}
}

// wrapped is a client type of a host.
type wrapped struct{ redis.UniversalClient }

func TestClientsOfUnknownTypesSendTheCommands(t *testing.T) {
	t.Parallel()
	single, cluster := redistest.Single(t), redistest.Cluster(t, 3, 0)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": single.Addr()}})
	defer ring.Close()
	for name, client := range map[string]redis.UniversalClient{
		"a wrapped client": wrapped{single.Client(t)}, "a wrapped cluster client": wrapped{cluster.Client(t)}, "a ring": ring,
	} {
		p := NewPipelines(client, nil)
		mustWork(t)(errors.Join(p.Do(t.Context(), Kind{}, write(name))...))
		mustWork(t)(errors.Join(p.Do(t.Context(), Kind{}, write(name), write(name+"b"))...))
		mustWork(t)(errors.Join(p.Do(t.Context(), Kind{IsRead: true}, read(name), read(name+"b"))...))
		if got := client.Get(t.Context(), name).Val(); got != "2" {
			t.Errorf("%s: two writes were done as %q", name, got)
		}
		if err := p.Do(t.Context(), Kind{IsRead: true}, read(name+"missing"))[0]; !errors.Is(err, redis.Nil) {
			t.Errorf("%s: a missing key: %v", name, err)
		}
		if errs := p.Elsewhere(t.Context(), read(name)); errs[0] != nil {
			t.Error(errs[0])
		}
	}
}
