// Package pushfx is a plugin for Matrix homeservers that serves push rules and pushers: an
// fx module with echo route groups for the endpoints, the domain service behind them, and
// stores on Redis.
//
// The host includes [Module], provides a redis.UniversalClient and a *zap.Logger, and mounts
// the route groups (tagged [RouteGroups]) with an auth middleware that calls
// [handlers.WithRequester]. fx.Replace and fx.Decorate replace or wrap every interface of
// package module. A host without fx calls [New], a host without echo [Push.Handler].
package pushfx

import (
	"context"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/assembly"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/delivery/channel/webpush"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/service"
	"github.com/pushfx/pushfx/module/telemetry/metrics"
	"github.com/pushfx/pushfx/module/unread"
)

// The value groups of the module.
const (
	// RouteGroups is the group of []handlers.RouteGroup that the host mounts.
	RouteGroups = `group:"push.route_groups"`

	// ChangeListeners is the group of []module.ChangeListener.
	ChangeListeners = `group:"push.change_listeners"`

	// PusherListeners is the group of []module.PusherListener.
	PusherListeners = `group:"push.pusher_listeners"`

	// Channels is the group of []module.Channel, for hosts with [Delivery].
	Channels = `group:"push.channels"`
)

// Config joins the configs of the module's parts, which document meaning, unit and
// default of each field. Change it with
//
//	fx.Decorate(func(c pushfx.Config) pushfx.Config { c.Redis.KeyPrefix = "hs1:"; return c })
type Config struct {
	Redis        rediscommit.Config // keys, durability and timeout of the stores
	Servers      redisclient.Config // requirements on the Redis servers at start
	Handlers     handlers.Config    // limits of requests
	RuleLimits   pushrule.Limits    // limits of users' push rules
	PusherPolicy pusher.Policy      // rules for pushers
	Changes      feed.Config        // notification of listeners and syncs

	// Only for hosts with [Delivery].
	Delivery        delivery.Config        // sending notifications
	DeliveryMetrics metrics.DeliveryConfig // their metrics

	// With Mail.Server.URL, hosts with [Delivery] send mails to pushers of kind email, and need
	// PusherPolicy.Email.
	Mail assembly.Mail

	// With WebPush.Key, hosts with [Delivery] send to browsers (MSC4174). See [Push.Capabilities].
	WebPush webpush.Config

	Unread unread.Config // only for hosts with [Unread]

	// Features add the server-default rules of proposals, such as [pushrule.Polls].
	// DefaultRules are the host's own. Stored sets get and lose such rules with
	// [module.HostService.RefreshDefaults]. Users' settings stay, even while a feature is
	// off, but are lost with a rule that leaves DefaultRules. All hosts of a Redis must
	// have the same Features and DefaultRules: otherwise the last refresh decides, and a
	// new user gets the rules of the host that creates the set. The start does not compare
	// hosts, so that features can be turned on host by host. Default: none.
	Features     []pushrule.Feature
	DefaultRules []pushrule.DefaultRule
}

// DefaultConfig returns the defaults of all parts.
func DefaultConfig() Config {
	return Config{
		Redis:        rediscommit.DefaultConfig(),
		Servers:      redisclient.DefaultConfig(),
		Handlers:     handlers.DefaultConfig(),
		RuleLimits:   pushrule.DefaultLimits(),
		PusherPolicy: pusher.DefaultPolicy(),
		Changes:      feed.DefaultConfig(),
		Delivery:     delivery.DefaultConfig(),
		Mail:         assembly.DefaultMail(),
	}
}

// Validate joins the errors of all invalid fields. Each begins with the path of the
// field: "Config.Handlers.MaxBodyBytes is 0, ...".
func (c Config) Validate() error { return assembly.Config(c).Validate() }

// Push is the whole module: endpoints, calls for the host, and background work. It comes
// from [New] or, in the fx container, [Module].
type Push struct {
	Rules   module.RuleService   // push rule operations
	Pushers module.PusherService // pusher operations
	Host    module.HostService   // calls for the host's own code
	Sync    module.SyncService   // the push rules part of /sync
	Health  module.Health        // for the readiness probe

	// Events hands new events over. Without [Delivery] or [Options.Delivery] its calls fail, and
	// all of the event is left; without unread counts nothing is counted.
	Events module.EventService

	// Notifier sends notifications. Its calls fail without [Delivery] or [Options.Delivery].
	Notifier module.Notifier

	// Unread counts unread notifications. Its calls fail without [Unread] or [Options.Unread].
	Unread module.UnreadService

	Stores module.Stores // the stores of the services

	// Clock is the clock of Redis, measured by [Push.Check] and while [Push.Run] runs.
	Clock *redisclient.Clock

	// Groups are the endpoints: push rules, pushers, account data m.push_rules, the page that
	// stops mails if Config.Mail.Texts has a key, and notifications if the host has unread counts and
	// a [module.NotifiedEvents]. With fx,
	// mount [RouteGroups], which also has the host's own groups.
	Groups []handlers.RouteGroup

	assembled *assembly.Assembled
	cfg       assembly.Config
}

// Options are the optional arguments of [New]. If the host's parts need the [Push],
// pass a struct of the host's interfaces, and set its fields after New; see the
// example.
type Options struct {
	Log       *zap.Logger             // nil means no logs; lines have the name "push" below the logger's
	Accounts  module.Accounts         // reports which devices are logged in
	Import    module.ImportSource     // users to import
	Listeners []module.ChangeListener // notified of changes of push rules
	Metrics   prometheus.Registerer   // gets the module's metrics
	Tracers   trace.TracerProvider    // gets the module's traces

	PusherListeners []module.PusherListener // notified of changes of pushers

	// Stores replace the module's stores, each separately. With all three replaced, the
	// client may be nil.
	Stores module.Stores

	// Delivery enables sending notifications.
	Delivery *DeliveryOptions

	// Unread enables unread counts.
	Unread *UnreadOptions
}

// UnreadOptions are the optional arguments of unread counts for a host without fx.
type UnreadOptions struct {
	Events module.NotifiedEvents // enables GET /notifications
}

// DeliveryOptions are the optional arguments of delivery for a host without fx.
type DeliveryOptions struct {
	Unread    module.Unread        // replaces the counts and read events of Options.Unread
	Attention module.Attention     // whether users are active elsewhere
	Gateway   module.Gateway       // replaces HTTP requests
	Queue     module.DeliveryQueue // replaces Redis
	Channels  []module.Channel     // for kinds of pushers of the host's own

	Mailer       module.Mailer       // replaces Config.Mail.Server
	MailComposer module.MailComposer // replaces Config.Mail.Texts
}

// New returns the module on a Redis client, which must read from masters and which the
// host closes. It does no I/O and starts nothing: call [Push.Check] before serving
// requests, and keep [Push.Run] running. It fails if cfg is invalid or the metrics are
// registered already.
func New(client redis.UniversalClient, cfg Config, o Options) (*Push, error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	o.Log = o.Log.Named("push")
	b, err := assembly.New(assembly.Host{
		Config: assembly.Config(cfg), Log: o.Log, Client: client, Registerer: o.Metrics, Tracers: o.Tracers,
	})
	if err != nil {
		return nil, err
	}
	stores, err := b.Stores(o.Stores, o.Unread != nil)
	if err != nil {
		return nil, err
	}
	changes, err := b.Feed(stores, o.Listeners, o.PusherListeners)
	if err != nil {
		return nil, err
	}
	var channels []module.Channel
	if o.Delivery != nil {
		channels = o.Delivery.Channels
	}
	services := b.Service(stores, changes, o.Accounts, o.Import, channels)
	p := assembly.Parts{
		Rules: services.Rules(), Pushers: services.Pushers(), Health: b.Health(), Stores: stores, Service: services, Feed: changes,
	}
	p.Host, p.Sync = services.Host(p.Rules), changes.Sync(p.Rules)
	var events module.NotifiedEvents
	if o.Unread != nil {
		p.Unread, events = &assembly.Counts{Service: b.Unread(stores.Unread)}, o.Unread.Events
	}
	if o.Delivery != nil {
		if p.Delivery, err = b.DeliveryWith(assembly.DeliveryParts(*o.Delivery), p.Host, changes, p.Unread); err != nil {
			return nil, err
		}
	}
	if p.Groups, err = b.Groups(p.Rules, p.Pushers, p.Host, p.Unread, events); err != nil {
		return nil, err
	}
	return newPush(b.Assemble(p), cfg), b.Finish()
}

// newPush returns the Push of a host.
func newPush(a *assembly.Assembled, cfg Config) *Push {
	return &Push{
		Rules: a.Rules, Pushers: a.Pushers, Host: a.Host, Sync: a.Sync, Health: a.Health, Unread: a.Counts(),
		Notifier: a.Notifications.Notifier, Events: a.Notifications.Events,
		Stores: a.Stores, Clock: a.Clock, Groups: a.Groups, assembled: a, cfg: assembly.Config(cfg),
	}
}

// Handler serves the module's endpoints for hosts without echo; see [handlers.Handler].
func (p *Push) Handler(auth handlers.Auth) http.Handler {
	return handlers.Handler(auth, p.assembled.Log, p.Groups...)
}

// Owns reports whether a request is for [Push.Handler], by its complete path: call it
// before stripping a prefix.
func (p *Push) Owns(r *http.Request) bool {
	return handlers.Owns(r) || p.assembled.HasNotifications && handlers.OwnsNotifications(r)
}

// UnstableFeatures returns what Config.Features and Config.WebPush add to unstable_features in
// the host's GET /_matrix/client/versions. The map is the caller's.
func (p *Push) UnstableFeatures() map[string]bool { return p.cfg.UnstableFeatures() }

// Capabilities returns what Config.WebPush adds to capabilities in the host's GET
// /_matrix/client/v3/capabilities. The map is the caller's.
func (p *Push) Capabilities() map[string]any { return p.cfg.Capabilities() }

// Check must be called at the start of a host. It returns an error if the module cannot
// work with its Redis, and logs a warning for each harmful setting. A line at level info
// names what the host has replaced and added, and the kinds of pushers that it sends to. It takes at most
// Config.Servers.StartTimeout and, with delivery, Config.Redis.OperationTimeout more.
func (p *Push) Check(ctx context.Context) error { return p.assembled.Check(ctx) }

// Run does all background work until ctx ends: it notifies listeners of changes,
// monitors the Redis servers and, with delivery, sends
// notifications. It returns when all work has ended, up to Config.Delivery.DrainTimeout
// later. Run it once on every host: a second call logs an error and returns.
func (p *Push) Run(ctx context.Context) { p.assembled.Run(ctx) }

// Module is [New] for fx. It provides the [Push] and, each on its own, the services and
// stores of package module, which the host can replace or decorate. It checks at start and
// runs until the stop.
//
// It needs a redis.UniversalClient (or *redis.Client, or *redis.ClusterClient) and a
// *zap.Logger, which the host closes. Optional are a [module.Accounts], a
// [module.ImportSource], a prometheus.Registerer (or *prometheus.Registry) and an
// OpenTelemetry trace.TracerProvider.
var Module = fx.Module("push",
	once("pushfx.Module"),
	fx.Provide(changeConfigWithFxReplaceOrDecorate),
	fx.Provide(builderOf), // [Delivery] needs the builder, too
	fx.Provide(fx.Private,
		fx.Annotate((*assembly.Builder).Groups, fx.ParamTags("", "", "", "", `optional:"true"`, `optional:"true"`)),
		fx.Annotate((*assembly.Builder).JoinStores, fx.ParamTags("", "", "", "", `optional:"true"`)),
	),
	fx.Provide(
		(*assembly.Builder).RuleStore,
		(*assembly.Builder).PusherStore,
		(*assembly.Builder).PushkeyIndex,
		(*assembly.Builder).Health,
		fx.Annotate((*assembly.Builder).Feed, fx.ParamTags("", "", ChangeListeners, PusherListeners)),
		fx.Annotate((*assembly.Builder).Service, fx.ParamTags("", "", "", `optional:"true"`, `optional:"true"`, Channels)),
		(*service.Service).Rules,
		(*service.Service).Pushers,
		(*service.Service).Host,
		(*feed.Feed).Sync,
		fx.Annotate(func(own assembly.Groups) []handlers.RouteGroup { return own }, fx.ResultTags(`group:"push.route_groups,flatten"`)),
		fx.Annotate(assembly.NotifierOf, fx.ParamTags(`optional:"true"`)),
		fx.Annotate(assembly.UnreadOf, fx.ParamTags(`optional:"true"`)),
		fx.Annotate(assembly.EventsOf, fx.ParamTags("", `optional:"true"`)),
		pushOf,
	),
	fx.Decorate(func(log *zap.Logger) *zap.Logger { return log.Named("push") }),
	fx.Invoke(run),
)

// Delivery adds a [module.Notifier], which sends notifications, and a [module.EventService],
// which hands events over to it, to a host with [Module].
// A [module.Unread] and a [module.Attention] are optional. The host may replace or wrap
// the [module.Notifier], the [module.Gateway], the [module.DeliveryQueue], the [module.Mailer] and the
// [module.MailComposer]. The Mailer is nil without Config.Mail.Server, the
// MailComposer without Config.Mail.Texts.
var Delivery = fx.Module("push_delivery", once("pushfx.Delivery"), besideModule("pushfx.Delivery"), fx.Provide(
	(*assembly.Builder).DeliveryQueue,
	(*assembly.Builder).Gateway,
	(*assembly.Builder).Mailer,
	(*assembly.Builder).MailComposer,
	fx.Annotate((*assembly.Builder).Delivery, fx.ParamTags("", "", "", "", "", "", "", `optional:"true"`, `optional:"true"`)),
	assembly.NewNotifications,
))

// Unread adds a [module.UnreadService], which counts unread notifications, to a host with
// [Module]. It is the [module.Unread] of [Delivery]. With a [module.NotifiedEvents] of the
// host, GET /notifications is served, too. The host may replace or wrap the
// [module.UnreadService] and the [module.UnreadStore].
var Unread = fx.Module("push_unread", once("pushfx.Unread"), besideModule("pushfx.Unread"), fx.Provide(
	(*assembly.Builder).UnreadStore,
	(*assembly.Builder).Unread,
	func(service module.UnreadService) module.Unread { return service },
	func(service module.UnreadService) *assembly.Counts { return &assembly.Counts{Service: service} },
))

// changeConfigWithFxReplaceOrDecorate is [DefaultConfig]. Its name is in the error of an app
// that supplies a Config beside it.
func changeConfigWithFxReplaceOrDecorate() Config { return DefaultConfig() }

type included bool

// once makes an app fail that includes an option twice. The error has the name of the
// result: "include pushfx.Module once".
func once(option string) fx.Option {
	return fx.Provide(fx.Annotate(func() included { return true }, fx.ResultTags(`name:"include `+option+` once"`)))
}

// besideModule makes an app fail that includes an option without [Module].
func besideModule(option string) fx.Option {
	return fx.Invoke(fx.Annotate(func(module included) error {
		if !module {
			return fmt.Errorf("pushfx: include pushfx.Module, which %s needs", option)
		}
		return nil
	}, fx.ParamTags(`name:"include pushfx.Module once" optional:"true"`)))
}

func as[T any](constructor any, group string) any {
	return fx.Annotate(constructor, fx.As(new(T)), fx.ResultTags(group))
}

// AsRouteGroup annotates a constructor of a [handlers.RouteGroup] to join [RouteGroups].
func AsRouteGroup(constructor any) any { return as[handlers.RouteGroup](constructor, RouteGroups) }

// AsChangeListener annotates a constructor of a [module.ChangeListener] to join [ChangeListeners].
func AsChangeListener(constructor any) any {
	return as[module.ChangeListener](constructor, ChangeListeners)
}

// AsChannel annotates a constructor of a [module.Channel] to join [Channels].
func AsChannel(constructor any) any { return as[module.Channel](constructor, Channels) }

// AsPusherListener annotates a constructor of a [module.PusherListener] to join [PusherListeners].
func AsPusherListener(constructor any) any {
	return as[module.PusherListener](constructor, PusherListeners)
}

func run(lc fx.Lifecycle, b *assembly.Builder, p *Push) error {
	if err := b.Finish(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	lc.Append(fx.StartStopHook(func(start context.Context) error {
		if err := p.Check(start); err != nil {
			return err
		}
		go func() {
			defer close(ended)
			p.Run(ctx)
		}()
		return nil
	}, func(stop context.Context) error {
		cancel()
		select {
		case <-ended:
			return nil
		case <-stop.Done():
			return fmt.Errorf("pushfx: a change listener or a push gateway does not return: %w", stop.Err())
		}
	}))
	return nil
}

// hostParts are what the host provides in its container.
type hostParts struct {
	fx.In

	Config        Config
	Log           *zap.Logger
	Client        redis.UniversalClient `optional:"true"`
	ClusterClient *redis.ClusterClient  `optional:"true"` // replaces Client
	NodeClient    *redis.Client         `optional:"true"` // replaces Client
	Tracers       trace.TracerProvider  `optional:"true"`
	Registerer    prometheus.Registerer `optional:"true"`
	Registry      *prometheus.Registry  `optional:"true"` // replaces Registerer
}

// builderOf returns the builder on what the container has.
func builderOf(h hostParts) (*assembly.Builder, error) {
	return assembly.New(assembly.Host{
		Config: assembly.Config(h.Config), Log: h.Log, Client: h.Client, Registerer: h.Registerer, Tracers: h.Tracers,
		ClusterClient: h.ClusterClient, NodeClient: h.NodeClient, Registry: h.Registry,
	})
}

// parts are [assembly.Parts] in the container.
type parts struct {
	fx.In

	Rules   module.RuleService
	Pushers module.PusherService
	Host    module.HostService
	Sync    module.SyncService
	Health  module.Health
	Stores  module.Stores
	Groups  assembly.Groups
	Service *service.Service
	Feed    *feed.Feed

	Delivery      *delivery.Delivery      `optional:"true"`
	Notifications *assembly.Notifications `optional:"true"`
	Unread        *assembly.Counts        `optional:"true"`
}

func pushOf(b *assembly.Builder, cfg Config, p parts) *Push {
	return newPush(b.Assemble(assembly.Parts{
		Rules: p.Rules, Pushers: p.Pushers, Host: p.Host, Sync: p.Sync, Health: p.Health, Stores: p.Stores, Groups: p.Groups,
		Service: p.Service, Feed: p.Feed, Delivery: p.Delivery, Notifications: p.Notifications, Unread: p.Unread,
	}), cfg)
}
