package delivery

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/delivery/turns"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
)

var _ module.Notifier = (*Delivery)(nil)

// Delivery sends notifications to push gateways. It is safe for concurrent use.
type Delivery struct {
	cfg       Config
	limits    content.Limits
	queue     module.DeliveryQueue
	gateway   module.Gateway
	host      module.HostService
	audience  *audience
	clock     func() time.Time
	observer  observe.Observer
	hasUnread bool
	hasDelays bool

	pushers *gather[mxid.UserID, module.Result[pusher.List]]
	counts  *gather[mxid.UserID, module.Result[module.Counts]]
	read    *gather[module.UserEvent, bool]
	delays  *gather[module.UserDevice, time.Duration]

	wake     chan struct{} // ends the wait for the next look
	stopping chan struct{} // closed when this host stops

	expanding chan struct{} // has a value for each step of a fan-out in progress

	mu          sync.Mutex
	turns       *turns.Scheduler
	sending     sync.WaitGroup
	life        context.Context // of requests; nil if this host does not send
	hasMore     bool            // the last look left due backlogs
	late        time.Duration   // lateness of the oldest due backlog at the last look
	lookedAt    time.Time       // the last look without an error
	putOffUntil time.Time       // then all backlogs that were put off are due again
	isTicking   bool            // while requests wait for their places
	reported    map[string]time.Time
	own         map[module.Target]*claimed // claims of this host
	summary     module.QueueSummary        // of the queue, at summaryAt
	summaryAt   time.Time
	lateSince   time.Time // since then there are lateReports
	lateReports int
}

// Seams are the dependencies of a [Delivery].
type Seams struct {
	Queue     module.DeliveryQueue
	Gateway   module.Gateway // see [NewHTTPGateway]
	Host      module.HostService
	Feed      *module.Feed     // caches the compiled rules of users while it runs
	Unread    module.Unread    // nil if the host has none
	Attention module.Attention // nil if the host has none

	// Now is the clock of the queue. Nil is the host's clock.
	Now func() time.Time

	// Observer observes calls, requests to gateways, dropped notifications, and errors of
	// background work. Nil is none.
	Observer observe.Observer
}

// New does no I/O and starts no goroutine. It fails if cfg is invalid.
func New(seams Seams, cfg Config) (*Delivery, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("delivery: %w", err)
	}
	if seams.Now == nil {
		seams.Now = time.Now
	}
	seams.Observer = observe.Or(seams.Observer)
	d := &Delivery{
		cfg: cfg, limits: cfg.limits(), queue: seams.Queue, gateway: seams.Gateway, host: seams.Host,
		audience: &audience{seams.Feed, seams.Host, match.NewCache(cfg.MaxCachedRules), seams.Observer},
		clock:    seams.Now, observer: seams.Observer,
		hasUnread: seams.Unread != nil, hasDelays: seams.Attention != nil,
		wake: make(chan struct{}, 1), stopping: make(chan struct{}), expanding: make(chan struct{}, expansions), reported: map[string]time.Time{}, own: map[module.Target]*claimed{},
		turns: turns.New(turns.Config{MaxInFlight: cfg.MaxInFlight, MaxPerGate: cfg.MaxPerGateway, Random: rand.Float64}),
	}
	d.pushers = newGather(seams.Host.Pushers)
	if seams.Unread != nil {
		d.counts = newGather(seams.Unread.Counts)
		d.read = newGather(eachOf(seams.Unread.AreRead))
	}
	if seams.Attention != nil {
		d.delays = newGather(eachOf(seams.Attention.Delay))
	}
	return d, nil
}

// ShardOf returns the shard of a user.
func ShardOf(user mxid.UserID, shards int) int {
	h := fnv.New64a()
	h.Write([]byte(user))
	return int(h.Sum64() % uint64(shards))
}

// PusherID returns the name of a pusher's backlog. It is a digest, so it may be logged.
func PusherID(user mxid.UserID, key pusher.Key) string { return content.PusherID(user, key) }

// Check fails if the queue cannot be used, for example because it has another number
// of shards.
func (d *Delivery) Check(ctx context.Context) error {
	if err := d.queue.Open(ctx, d.cfg.Shards); err != nil {
		return fmt.Errorf("delivery: open the queue: %w", err)
	}
	return nil
}

// Run sends due backlogs until ctx ends. Then it releases its claims, and waits for
// requests in flight, up to Config.DrainTimeout. It returns when all its goroutines have
// ended. Call it once, on every host, after [Delivery.Check].
func (d *Delivery) Run(ctx context.Context) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	d.mu.Lock()
	d.life, d.lookedAt = life, time.Now()
	d.mu.Unlock()
	var summaries sync.WaitGroup
	summaries.Go(func() { d.summarize(ctx) })
	defer summaries.Wait()
	d.look(ctx)
	d.mu.Lock()
	d.life = nil
	d.mu.Unlock()
	close(d.stopping)
	drained := time.AfterFunc(d.cfg.DrainTimeout, end)
	defer drained.Stop()
	d.sending.Wait()
}

// start runs do in a goroutine, unless this host is stopping. Life ends after
// Config.DrainTimeout.
func (d *Delivery) start(do func(life context.Context)) (started bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	life := d.life
	if life == nil {
		return false
	}
	d.sending.Go(func() { do(life) })
	return true
}

func (d *Delivery) isStopping() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.life == nil
}

// mayClaim reports whether this host sends to a gate; it leaves gates that it does not
// reach to other hosts.
func (d *Delivery) mayClaim(gate string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.life != nil && d.turns.MayReach(time.Now(), gate)
}

func (d *Delivery) admit(user mxid.UserID, gate string) (*turns.Turn, time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	turn, delay := d.turns.Admit(now, string(user), gate)
	if due := now.Add(delay); turn == nil && delay < lookEvery/2 && due.After(d.putOffUntil) {
		d.putOffUntil = due
	}
	if turn != nil && turn.Ready != nil && !d.isTicking {
		d.isTicking = true
		time.AfterFunc(tickEvery, d.tick)
	}
	return turn, delay
}

// tickEvery is the interval of [turns.Scheduler.Tick].
const tickEvery = 50 * time.Millisecond

func (d *Delivery) tick() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.turns.Tick(time.Now())
	if d.isTicking = d.turns.Waiting() > 0; d.isTicking {
		time.AfterFunc(tickEvery, d.tick)
	}
}

// expectMore makes the end of the next turn start a look.
func (d *Delivery) expectMore() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hasMore = true
}

// lowLine is the number of waiting requests of a gate below which a host looks for more.
const lowLine = 64

// endTurn ends a turn, and starts a look if more backlogs are due, or the gate is open
// again.
func (d *Delivery) endTurn(t *turns.Turn, r turns.Result, wait time.Duration) {
	d.mu.Lock()
	wasOpen := d.turns.IsOpen(t.Gate)
	d.turns.End(time.Now(), t, r, wait)
	hasMore := d.hasMore && d.turns.WaitingAt(t.Gate) < lowLine || !wasOpen && d.turns.IsOpen(t.Gate)
	d.mu.Unlock()
	if hasMore {
		select {
		case d.wake <- struct{}{}:
		default:
		}
	}
}

// reportEvery is the least time between two reports of one kind of failure.
const reportEvery = 30 * time.Second

// failed counts a failure of background work, and reports at most one of a kind in
// reportEvery.
func (d *Delivery) failed(doing string, err error) {
	d.observer.Count(observe.DeliveryFailed, string(reasonOf(err)), 1)
	d.mu.Lock()
	isNew := time.Since(d.reported[doing]) >= reportEvery
	if isNew {
		d.reported[doing] = time.Now()
	}
	d.mu.Unlock()
	if isNew {
		d.observer.Report(observe.DeliveryDelayed, fmt.Errorf("delivery: %s: %w", doing, err))
	}
}

// Stats returns the current state of this host.
func (d *Delivery) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.turns.Stats()
	late := d.late
	if since := time.Since(d.lookedAt); d.life != nil && since > 2*lookEvery {
		late += since // looks fail
	}
	return Stats{
		InFlight: s.InFlight, Slow: s.Hanging, Late: late,
		Waiting: d.summary.Notifications, Oldest: oldest(d.summary, d.summaryAt), WaitingAt: byGateway(d.summary.Gates),
		Gateways:        [gateStates]int{GateOpen: s.Open, GateClosed: s.Closed, GateHeld: s.Held},
		RemovalsStopped: s.Stopped, CutOff: d.turns.IsCutOff(time.Now()),
	}
}

// Decide implements [module.Notifier].
func (d *Delivery) Decide(ctx context.Context, e module.Event, members []match.Member) (decisions module.Decisions, err error) {
	ctx, end := d.observer.Begin(ctx, decideCall)
	defer func() { end(observe.Outcome{Err: err}) }()
	return d.audience.decide(ctx, e, members)
}
