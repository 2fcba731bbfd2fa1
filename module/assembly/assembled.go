package assembly

import (
	"context"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/handover"
	"github.com/pushfx/pushfx/module/mail/smtp"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/service"
	"github.com/pushfx/pushfx/module/telemetry/metrics"
	"github.com/pushfx/pushfx/module/unread"
	"github.com/pushfx/pushfx/module/unread/redisunread"
	"github.com/pushfx/pushfx/pusherstore"
	"github.com/pushfx/pushfx/rulestore"
)

// Parts are the parts of the module, wrapped or replaced by the host.
type Parts struct {
	Rules   module.RuleService
	Pushers module.PusherService
	Host    module.HostService
	Sync    module.SyncService
	Health  module.Health
	Stores  module.Stores
	Groups  Groups
	Service *service.Service
	Feed    *feed.Feed

	Delivery      *delivery.Delivery // nil without delivery
	Notifications *Notifications     // nil in a host without a container, or without delivery
	Unread        *Counts            // nil without unread counts
}

// Notifications are the calls of a host with delivery.
type Notifications struct {
	Notifier module.Notifier
	Events   module.EventService
}

// NewNotifications returns the calls for a container.
func NewNotifications(notifier module.Notifier, events module.EventService) *Notifications {
	return &Notifications{notifier, events}
}

// Counts has the unread counts.
type Counts struct{ Service module.UnreadService }

// Assembled is the module with all of its parts.
type Assembled struct {
	Parts
	Clock            *redisclient.Clock
	Log              *zap.Logger
	HasNotifications bool // GET /notifications is served

	servers   *redisclient.Monitor // nil if the host has replaced all parts on Redis, as the next one
	pipelines *redisclient.Pipelines
	mailer    *smtp.Mailer // nil if the host sends no mail, or has its own
	metrics   *metrics.Set
	fromHost  []string // interfaces and the types of the host's parts
	hasRun    atomic.Bool
}

// Assemble joins the parts. Its Notifications are not nil.
func (b *Builder) Assemble(p Parts) *Assembled {
	if p.Notifications == nil {
		notifier, _ := NotifierOf(p.Delivery) // without delivery, each call of notifier returns the error
		p.Notifications = &Notifications{notifier, EventsOf(notifier, p.Unread)}
	}
	b.noteParts(p)
	a := &Assembled{
		Parts: p, Clock: b.servers.Clock(), Log: b.host.Log, HasNotifications: b.hasNotifications,
		mailer: b.ownMailer, metrics: b.metrics, fromHost: b.hostParts(),
	}
	if b.onRedis {
		a.servers, a.pipelines = b.servers, b.pipelines
	}
	return a
}

func (b *Builder) noteParts(p Parts) {
	b.note("RuleStore", p.Stores.Rules, (*rulestore.Store)(nil))
	b.note("PusherStore", p.Stores.Pushers, (*pusherstore.Store)(nil))
	b.note("PushkeyIndex", p.Stores.Pushkeys, (*pusherstore.Index)(nil))
	b.note("UnreadStore", p.Stores.Unread, (*redisunread.Store)(nil))
	b.note("RuleService", p.Rules, p.Service.Rules())
	b.note("PusherService", p.Pushers, p.Service.Pushers())
	b.note("HostService", p.Host, p.Service.Host(p.Rules))
	b.note("SyncService", p.Sync, p.Feed.Sync(p.Rules))
	if p.Unread != nil {
		b.note("UnreadService", p.Unread.Service, (*unread.Service)(nil))
	}
	if p.Delivery != nil {
		b.note("Notifier", p.Notifications.Notifier, p.Delivery)
		b.note("EventService", p.Notifications.Events, (*handover.Service)(nil))
	}
	b.note("Health", p.Health, b.servers)
}

// Counts returns the unread counts of the host.
func (a *Assembled) Counts() module.UnreadService {
	if a.Unread == nil {
		return noUnread{}
	}
	return a.Unread.Service
}

// Check checks the servers and opens the queue; see pushfx.Push.
func (a *Assembled) Check(ctx context.Context) (err error) {
	if a.servers != nil {
		err = a.servers.Check(ctx)
	}
	if err == nil && a.Delivery != nil {
		err = a.Delivery.Check(ctx)
	}
	if err != nil {
		return &startError{err}
	}
	var kinds []pusher.Kind
	if a.Delivery != nil {
		kinds = a.Delivery.Kinds()
	}
	a.Log.Info("pushfx is ready", zap.Strings("host_parts", a.fromHost),
		zap.Bool("delivery", a.Delivery != nil), zap.Any("sends_to", kinds), zap.Bool("unread", a.Unread != nil))
	return nil
}

// startError is an error of [Assembled.Check]. Its text has the causes of faults: no client sees it.
type startError struct{ cause error }

func (e *startError) Error() string { return "pushfx: " + fault.Details(e.cause) }
func (e *startError) Unwrap() error { return e.cause }

// Run does all background work until ctx ends; see pushfx.Push.
func (a *Assembled) Run(ctx context.Context) {
	if a.hasRun.Swap(true) {
		a.Log.Error("Push.Run was called twice, the second call does nothing")
		return
	}
	defer a.metrics.Unregister()
	var running sync.WaitGroup
	running.Go(func() { a.Feed.Run(ctx) })
	if a.servers != nil {
		running.Go(func() { a.servers.Run(ctx) })
	}
	if a.Delivery != nil {
		running.Go(func() { a.Delivery.Run(ctx) })
	}
	running.Wait()
	if a.pipelines != nil {
		a.pipelines.Wait()
	}
	if a.mailer != nil {
		_ = a.mailer.Close() // has no error
	}
}
