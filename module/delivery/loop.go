package delivery

import (
	"container/heap"
	"context"
	"crypto/rand"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
)

// queueTimeout bounds an operation of the queue, of pushers and of the host.
const queueTimeout = 5 * time.Second

// pusherSource is what delivery needs of [module.HostService].
type pusherSource interface {
	Pushers(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[pusher.List]
	RemovePusher(ctx context.Context, user mxid.UserID, key pusher.Key, setAt int64) error
}

// sender owns shards of the queue and sends what is in them. All its state
// belongs to one goroutine, that of run. What may block runs on another one and
// returns a function for this one; so nothing is locked.
type sender struct {
	queue     module.DeliveryQueue
	gateway   module.Gateway
	pushers   pusherSource
	unread    module.Unread    // nil if the host has none
	attention module.Attention // nil if the host has none
	cfg       Config
	clock     func() time.Time // that of the queue
	observer  observe.Observer

	host    string // the name of this run
	ctx     context.Context
	results chan func()
	started sync.WaitGroup
	alarms  alarms

	shards    map[int]*shard
	releasing map[int]*release // shards that are being given back
	touched   []*shard         // those in which there may be something to do
	ticking   bool
	hosts     int // that share the work

	gateways map[string]*gateway
	active   []*gateway               // those that may take another request
	denied   [classes]deque[*gateway] // those that would, if they had no more than their share
	posters  posters
	shared   shared
	failing  int          // pushers that wait after failures which may be their gateways'
	requests [classes]int // that are under way
	saves    saves

	toLoad    batch[*user]
	toPrepare batch[*fifo]
	held      int // pushers of which the queue keeps a record
	heldBytes int
	badges    badges
	stopping  bool // this host gives its shards back
	leaving   bool // and has given them back
	stopped   bool
	hinted    []atomic.Int32 // by shard
	stats     atomic.Pointer[Stats]
	takeovers int64

	reporting sync.Mutex
	reported  map[string]time.Time
}

func (s *sender) init() {
	s.host = rand.Text()
	s.results = make(chan func(), 256)
	s.shards, s.releasing, s.gateways = map[int]*shard{}, map[int]*release{}, map[string]*gateway{}
	s.shared.changes = map[string]module.GatewayChange{}
	s.posters.work = make(chan func(context.Context) func(), s.cfg.MaxInFlight)
	s.hinted = make([]atomic.Int32, s.cfg.Shards)
	s.badges = newBadges()
	s.hosts, s.reported = 1, map[string]time.Time{}
	s.toLoad.start, s.toPrepare.start = s.load, s.prepare
}

// run sends until ctx ends and what is under way then has ended.
func (s *sender) run(ctx context.Context) {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.ctx = base
	defer s.started.Wait()
	defer cancel()
	s.started.Go(func() { s.watch(base) })
	s.tick()
	s.guard()
	s.pulse()
	timer := time.NewTimer(0)
	defer timer.Stop()
	ending := ctx.Done()
	for !s.stopped {
		timer.Reset(s.alarms.wait())
		select {
		case then := <-s.results:
			runtime.Gosched() // more arrives meanwhile, and is taken in with it
			then()
			s.takeResults()
		case <-timer.C:
			s.alarms.ring()
		case <-ending:
			ending = nil
			s.stop()
		}
		s.step()
	}
}

// takeResults takes what else has arrived.
func (s *sender) takeResults() {
	for range cap(s.results) {
		select {
		case then := <-s.results:
			then()
		default:
			return
		}
	}
}

// step does what can be done now.
func (s *sender) step() {
	for {
		for len(s.touched) > 0 {
			shards := s.touched
			s.touched = nil
			for _, sh := range shards {
				sh.touched = false
				sh.step()
			}
		}
		s.toLoad.run()
		s.dispatch()
		s.toPrepare.run()
		s.save()
		if len(s.touched) == 0 {
			return
		}
	}
}

// async runs work on a goroutine of its own, and what it returns on that of run.
func (s *sender) async(work func(ctx context.Context) (then func())) {
	s.started.Go(func() {
		then := work(s.ctx)
		select {
		case s.results <- then:
		case <-s.ctx.Done():
		}
	})
}

// posters are the goroutines that wait for the answers of gateways. They are kept,
// since a new one's stack has to grow each time.
type posters struct {
	work    chan func(context.Context) (then func())
	started int
	busy    int
}

// post is async on one of the posters, of which there are as many as there have
// been requests at the same time.
func (s *sender) post(work func(ctx context.Context) (then func())) {
	if s.posters.busy++; s.posters.busy > s.posters.started {
		s.posters.started++
		s.started.Go(s.poster)
	}
	s.posters.work <- work // at least one of them waits for it
}

func (s *sender) poster() {
	for {
		select {
		case work := <-s.posters.work:
			then := work(s.ctx)
			select {
			case s.results <- then:
			case <-s.ctx.Done():
				return
			}
		case <-s.ctx.Done():
			return
		}
	}
}

// bounded is async for work that takes a limited time.
func (s *sender) bounded(work func(ctx context.Context) (then func())) {
	s.async(func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, queueTimeout)
		defer cancel()
		return work(ctx)
	})
}

// after runs then on the goroutine of run when a time is over.
func (s *sender) after(d time.Duration, then func()) { s.at(time.Now().Add(d), then) }

func (s *sender) at(at time.Time, then func()) { heap.Push(&s.alarms, alarm{at, then}) }

// ahead is how far the clock of the queue is ahead of this machine's.
func (s *sender) ahead() time.Duration { return time.Until(s.clock()) }

// reportEvery is how often the same thing that fails is reported.
const reportEvery = 30 * time.Second

// failed reports what goes wrong and is tried again. It may be called by any
// goroutine.
func (s *sender) failed(doing string, err error) {
	s.reporting.Lock()
	last, found := s.reported[doing]
	again := s.ctx.Err() == nil && (!found || time.Since(last) >= reportEvery)
	if again {
		s.reported[doing] = time.Now()
	}
	s.reporting.Unlock()
	if again {
		s.observer.Report(observe.DeliveryDelayed, fmt.Errorf("delivery: %s: %w", doing, err))
	}
}

// alarm is what is to be done at a time.
type alarm struct {
	at   time.Time
	then func()
}

// alarms are a heap: the next comes first.
type alarms []alarm

func (a alarms) Len() int           { return len(a) }
func (a alarms) Less(i, j int) bool { return a[i].at.Before(a[j].at) }
func (a alarms) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a *alarms) Push(x any)        { *a = append(*a, x.(alarm)) }
func (a *alarms) Pop() any {
	old := *a
	last := old[len(old)-1]
	old[len(old)-1] = alarm{}
	*a = old[:len(old)-1]
	return last
}

// wait is how long it is until the next one.
func (a *alarms) wait() time.Duration {
	if len(*a) == 0 {
		return time.Hour
	}
	return max(0, time.Until((*a)[0].at))
}

// ring does what is due.
func (a *alarms) ring() {
	now := time.Now()
	for len(*a) > 0 && !(*a)[0].at.After(now) {
		heap.Pop(a).(alarm).then()
	}
}

// batch collects things that are worked on together: what comes while some are
// under way waits for the next time.
type batch[T any] struct {
	start   func([]T) // calls done when it has ended
	waiting []T
	running int
}

const (
	maxBatch    = 500
	maxParallel = 4
)

func (b *batch[T]) add(item T) { b.waiting = append(b.waiting, item) }

func (b *batch[T]) run() {
	for len(b.waiting) > 0 && b.running < maxParallel {
		n := min(len(b.waiting), maxBatch)
		some := b.waiting[:n:n]
		if b.waiting = b.waiting[n:]; len(b.waiting) == 0 {
			b.waiting = nil
		}
		b.running++
		b.start(some)
	}
}

func (b *batch[T]) done() { b.running-- }
