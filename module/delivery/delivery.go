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
	"github.com/pushfx/pushfx/module/internal/bounded"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
)

var _ module.Notifier = (*Delivery)(nil)

// Delivery brings notifications to push gateways: its methods hand events over
// to the queue, and [Delivery.Run] sends what is due. It is safe for concurrent use.
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

	wake chan struct{} // there may be room for more that is due

	mu         sync.Mutex
	turns      *turns.Scheduler
	rejections rejections
	badges     bounded.Map[string, module.Counts] // that pushers were sent last
	sending    sync.WaitGroup
	life       context.Context // of what is sent; nil if this host does not send
	hasMore    bool            // more is due than there was room for
	late       time.Duration   // of what had been due the longest
	reported   map[string]time.Time
	own        map[module.Target]*claimed // what this host sends
}

// maxBadges is of how many pushers a host remembers the counts that they were sent.
const maxBadges = 100_000

// Seams are what a [Delivery] is made of.
type Seams struct {
	Queue     module.DeliveryQueue
	Gateway   module.Gateway // see [NewHTTPGateway]
	Host      module.HostService
	Feed      *module.Feed     // keeps the compiled rules of users while it runs
	Unread    module.Unread    // nil if the host has none
	Attention module.Attention // nil if the host has none

	// Now is the clock of the queue, which says when notifications were handed over.
	// Nil is the host's own.
	Now func() time.Time

	// Observer is told of calls, requests to gateways and what becomes of
	// notifications, and reports what goes wrong outside of calls. Nil is none.
	Observer observe.Observer
}

// New returns delivery on the seams of a host. It does no I/O and starts nothing.
// It fails if cfg is not valid.
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
		wake: make(chan struct{}, 1), reported: map[string]time.Time{}, rejections: rejections{}, own: map[module.Target]*claimed{},
		badges: bounded.Map[string, module.Counts]{Limit: maxBadges},
		turns:  turns.New(turns.Config{MaxInFlight: cfg.MaxInFlight, MaxPerGate: cfg.MaxPerGateway, Random: rand.Float64}),
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

// PusherID returns the name of the backlog of a pusher. It tells nothing of the
// pushkey, and may be logged.
func PusherID(user mxid.UserID, key pusher.Key) string { return content.PusherID(user, key) }

// Check is for the start of a host: it returns why the queue cannot be used, one
// of another number of shards for example.
func (d *Delivery) Check(ctx context.Context) error {
	if err := d.queue.Open(ctx, d.cfg.Shards); err != nil {
		return fmt.Errorf("delivery: open the queue: %w", err)
	}
	return nil
}

// Run sends what is in the queue until ctx ends. Then it waits for the requests that
// are under way, at most for Config.DrainTimeout; all else is due for other hosts at
// once. It returns when all that it started has ended. Call it once, on every host,
// after [Delivery.Check].
func (d *Delivery) Run(ctx context.Context) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	d.mu.Lock()
	d.life = life
	d.mu.Unlock()
	d.look(ctx)
	d.mu.Lock()
	d.life = nil
	d.mu.Unlock()
	drained := time.AfterFunc(d.cfg.DrainTimeout, end)
	defer drained.Stop()
	d.sending.Wait()
}

// start runs something that sends, unless this host does not. It gets a context that
// ends when the time to stop is over.
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

// mayClaim reports whether this host sends what it hands over for a gate. Other hosts
// send it where this one is likely to fail.
func (d *Delivery) mayClaim(gate string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.life != nil && d.turns.MayReach(time.Now(), gate)
}

// admit gives a request its turn; see [turns.Scheduler.Admit].
func (d *Delivery) admit(user mxid.UserID, gate string) (*turns.Turn, time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.turns.Admit(time.Now(), string(user), gate)
}

// expectMore has this host look for what is due when it has room.
func (d *Delivery) expectMore() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hasMore = true
}

// endTurn ends a turn, which makes room for what else is due.
func (d *Delivery) endTurn(t *turns.Turn, pusher string, r turns.Result, wait time.Duration) {
	d.mu.Lock()
	d.turns.End(time.Now(), t, pusher, r, wait)
	hasMore := d.hasMore
	d.mu.Unlock()
	if hasMore {
		select {
		case d.wake <- struct{}{}:
		default:
		}
	}
}

// reportEvery is how often each kind of failure is reported.
const reportEvery = 30 * time.Second

// failed reports what went wrong, unless it was reported not long ago.
func (d *Delivery) failed(doing string, err error) {
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

// Stats returns what this host does right now.
func (d *Delivery) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.turns.Stats()
	return Stats{
		InFlight: s.InFlight, Slow: s.Slow, Late: d.late, Gateways: [gateStates]int{GateOpen: s.Open, GateClosed: s.Closed, GateHeld: s.Held},
		RemovalsStopped: d.rejections.stopped(), CutOff: d.turns.IsCutOff(time.Now()),
	}
}

// Decide implements [module.Notifier].
func (d *Delivery) Decide(ctx context.Context, e module.Event, members []match.Member) (decisions module.Decisions, err error) {
	ctx, end := d.observer.Begin(ctx, decideCall)
	defer func() { end(observe.Outcome{Err: err}) }()
	return d.audience.decide(ctx, e, members)
}
