package delivery

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/channel/mail"
	"github.com/pushfx/pushfx/module/delivery/channel/webpush"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/delivery/turns"
	"github.com/pushfx/pushfx/module/feed"
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
	channels  channel.Set
	host      module.HostService
	audience  *audience
	clock     func() time.Time
	observer  observe.Observer
	hasUnread bool
	hasDelays bool

	pushers *gather[mxid.UserID, module.Result[pusher.List]] // not cached
	states  *gather[module.UserEvent, module.Result[module.UnreadState]]
	delays  *gather[module.UserDevice, time.Duration]
	rules   *gather[mxid.UserID, module.Result[module.Content]] // not cached

	gates    *gates
	claims   *claims
	failures *failures

	summaries *summaries

	stopping chan struct{} // closed when this host stops

	mu       sync.Mutex
	sending  sync.WaitGroup
	life     context.Context // of requests; nil if this host does not send
	late     time.Duration   // since the earliest due time at the last look
	lookedAt time.Time       // the last look without an error
}

// Seams are the dependencies of a [Delivery].
type Seams struct {
	Queue     module.DeliveryQueue
	Gateway   module.Gateway // see [NewHTTPGateway]
	Host      module.HostService
	Feed      *feed.Feed       // caches the compiled rules of users while it runs
	Unread    module.Unread    // nil if the host has none
	Attention module.Attention // nil if the host has none

	// Mailer sends mails to pushers of kind email, MailComposer writes them. Without a Mailer
	// the host leaves their notifications to other hosts.
	Mailer       module.Mailer
	MailComposer module.MailComposer

	// ConfirmAddress reports whether an address is the user's, as [pusher.Policy.Email]. It is
	// called before each mail. If the address is not the user's, the pusher is removed; after an
	// error, the mail waits. Nil confirms all addresses.
	ConfirmAddress func(ctx context.Context, user mxid.UserID, address string) (bool, error)

	Mail mail.Config // when mails are sent; the zero value has the defaults

	WebPush webpush.Config // the zero value sends nothing to browsers

	Channels []module.Channel // of the host, for kinds of its own

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
	channels, err := cfg.channels(seams)
	if err != nil {
		return nil, fmt.Errorf("delivery: %w", err)
	}
	seams.Observer = observe.Or(seams.Observer)
	d := &Delivery{
		cfg: cfg, limits: cfg.limits(), queue: seams.Queue, channels: channels, host: seams.Host,
		clock: seams.Now, observer: seams.Observer,
		hasUnread: seams.Unread != nil, hasDelays: seams.Attention != nil,
		stopping: make(chan struct{}),
		gates:    newGates(turns.Config{MaxInFlight: cfg.MaxInFlight, MaxPerGate: cfg.MaxPerGateway, Random: rand.Float64}),
		failures: &failures{observer: seams.Observer, reported: map[string]reports{}},
	}
	d.audience = newAudience(seams.Feed, seams.Host, seams.Queue.Partition, seams.Observer)
	d.summaries = &summaries{queue: seams.Queue, failures: d.failures, channels: channels, reported: map[pusher.Kind]bool{}}
	d.claims = &claims{queue: seams.Queue, failures: d.failures, own: map[pusherName]*claimed{}}
	userOf := func(user mxid.UserID) mxid.UserID { return user }
	d.pushers = newGather(seams.Queue, userOf, seams.Host.Pushers)
	d.rules = newGather(seams.Queue, userOf, seams.Host.Rulesets)
	if seams.Unread != nil {
		d.states = newGather(seams.Queue, func(e module.UserEvent) mxid.UserID { return e.User }, eachOf(seams.Unread.States))
	}
	if seams.Attention != nil {
		d.delays = newGather(seams.Queue, func(of module.UserDevice) mxid.UserID { return of.User }, eachOf(seams.Attention.Delay))
	}
	return d, nil
}

// PusherID returns the name of a pusher in the queue. It is a digest, so it may be logged.
func PusherID(user mxid.UserID, key pusher.Key) string { return channel.PusherID(user, key) }

// Check fails if the queue cannot be used, for example because it has another format.
func (d *Delivery) Check(ctx context.Context) error {
	if err := d.queue.Open(ctx); err != nil {
		return fmt.Errorf("delivery: open the queue: %w", err)
	}
	return nil
}

// Run sends what is due until ctx ends. Then it releases its claims, and waits for
// requests in flight, up to Config.DrainTimeout. It returns when all its goroutines have
// ended. Call it once, on every host, after [Delivery.Check].
func (d *Delivery) Run(ctx context.Context) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	d.mu.Lock()
	d.life, d.lookedAt = life, time.Now()
	d.mu.Unlock()
	var beside sync.WaitGroup
	beside.Go(func() { d.summaries.run(ctx) })
	defer beside.Wait()
	d.look(ctx)
	d.mu.Lock()
	d.life = nil
	d.mu.Unlock()
	close(d.stopping)
	drained := time.AfterFunc(d.cfg.DrainTimeout, end)
	defer drained.Stop()
	d.sending.Wait()
}

// Kinds returns the kinds of pushers that this host sends to.
func (d *Delivery) Kinds() []pusher.Kind { return d.channels.Kinds() }

// start runs do in a goroutine, unless this host is stopping. Life ends
// Config.DrainTimeout after the host began to stop.
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

// Stats returns the current state of this host.
func (d *Delivery) Stats() Stats {
	s, isCutOff := d.gates.stats()
	d.mu.Lock()
	defer d.mu.Unlock()
	late := d.late
	if since := time.Since(d.lookedAt); d.life != nil && since > 2*lookEvery {
		late += since // no look has succeeded since then
	}
	all := Stats{
		InFlight: s.InFlight, Slow: s.Hanging, Late: late,
		Gateways:        [gateStates]int{GateOpen: s.Open, GateClosed: s.Closed, GateBlocked: s.Blocked},
		RemovalsStopped: s.Stopped, CutOff: isCutOff,
	}
	d.summaries.addTo(&all)
	return all
}

// Decide implements [module.Notifier].
func (d *Delivery) Decide(ctx context.Context, e module.Event, members []match.Member) (decisions module.Decisions, err error) {
	ctx, end := d.observer.Begin(ctx, decideCall)
	defer func() { end(observe.Outcome{Err: err}) }()
	return d.audience.decide(ctx, e, members)
}
