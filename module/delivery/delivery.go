package delivery

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
)

var _ module.Notifier = (*Delivery)(nil)

// Delivery brings notifications to push gateways: its methods hand events over
// to the queue, and [Delivery.Run] sends what the queue has for this host. It is
// safe for concurrent use.
type Delivery struct {
	cfg      Config
	queue    module.DeliveryQueue
	audience *audience
	updates  *badgeUpdates
	sender   *sender
	clock    func() time.Time
	observer observe.Observer
}

// Seams are what a [Delivery] is made of.
type Seams struct {
	Queue     module.DeliveryQueue
	Gateway   module.Gateway // see [NewHTTPGateway]
	Host      module.HostService
	Feed      *module.Feed     // keeps the compiled rules of users while it runs
	Unread    module.Unread    // nil if the host has none
	Attention module.Attention // nil if the host has none

	// Now is the clock of the queue, which says when entries were added. Nil is the
	// host's own.
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
		cfg: cfg, queue: seams.Queue, clock: seams.Now, observer: seams.Observer,
		audience: &audience{seams.Feed, seams.Host, match.NewCache(cfg.MaxCachedRules), seams.Observer},
		updates:  newBadgeUpdates(),
	}
	d.sender = &sender{
		queue: seams.Queue, gateway: seams.Gateway, pushers: seams.Host, unread: seams.Unread, attention: seams.Attention,
		cfg: cfg, clock: seams.Now, observer: seams.Observer,
	}
	d.sender.init()
	return d, nil
}

// Check is for the start of a host: it returns why the queue cannot be used, one
// of another number of shards for example.
func (d *Delivery) Check(ctx context.Context) error {
	if err := d.queue.Open(ctx, d.cfg.Shards); err != nil {
		return fmt.Errorf("delivery: open the queue: %w", err)
	}
	return nil
}

// Run sends what is in the queue until ctx ends. Then it waits for the requests that are under way, at
// most for Config.DrainTimeout, and gives its shards to other hosts. It returns
// when all that it started has ended. Call it once, on every host, after
// [Delivery.Check].
func (d *Delivery) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { d.updates.run(ctx, d.cfg.BadgeDelay, d.handOverCounts) })
	running.Go(func() { d.sender.run(ctx) })
	running.Wait()
}

// Stats returns what this host does right now, as of a second ago at most.
func (d *Delivery) Stats() Stats {
	if stats := d.sender.stats.Load(); stats != nil {
		return *stats
	}
	return Stats{}
}

// Decide implements [module.Notifier].
func (d *Delivery) Decide(ctx context.Context, e module.Event, members []match.Member) (decisions module.Decisions, err error) {
	ctx, end := d.observer.Begin(ctx, decideCall)
	defer func() { end(observe.Outcome{Err: err}) }()
	return d.audience.decide(ctx, e, members)
}

// UpdateBadges implements [module.Notifier]. Without [module.Unread] it does
// nothing.
func (d *Delivery) UpdateBadges(_ context.Context, users ...mxid.UserID) error {
	if d.sender.unread != nil {
		d.updates.add(users)
	}
	return nil
}
