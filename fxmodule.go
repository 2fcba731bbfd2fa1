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
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/delivery/channel/httppush"
	"github.com/pushfx/pushfx/module/delivery/dialguard"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/handover"
	"github.com/pushfx/pushfx/module/mail"
	"github.com/pushfx/pushfx/module/mail/smtp"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/service"
	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/module/telemetry/logging"
	"github.com/pushfx/pushfx/module/telemetry/metrics"
	"github.com/pushfx/pushfx/module/telemetry/tracing"
	"github.com/pushfx/pushfx/module/unread"
	"github.com/pushfx/pushfx/module/unread/redisunread"
	"github.com/pushfx/pushfx/pusherstore"
	"github.com/pushfx/pushfx/rulestore"
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

	// With SMTP.URL, hosts with [Delivery] send mails to pushers of kind email. Mail says what is in
	// them. The page that stops mails is served if Mail.Key is set. PusherPolicy.Email is required.
	SMTP smtp.Config
	Mail mail.Config

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

		Delivery: delivery.DefaultConfig(),
		SMTP:     smtp.DefaultConfig(),
	}
}

// Validate joins the errors of all invalid fields. Each begins with the path of the
// field: "Config.Handlers.MaxBodyBytes is 0, ...".
func (c Config) Validate() error {
	return errors.Join(
		below("Config.Redis.", c.Redis.Validate()),
		below("Config.Servers.", c.Servers.Validate()),
		below("Config.Handlers.", c.Handlers.Validate()),
		below("Config.RuleLimits.", c.RuleLimits.Validate()),
		below("Config.PusherPolicy.", c.PusherPolicy.Validate()),
		below("Config.Changes.", c.Changes.Validate()),
		below("Config.Delivery.", c.Delivery.Validate()),
		below("Config.DeliveryMetrics.", c.DeliveryMetrics.Validate()),
		c.validateMail(),
		c.validateDefaults(),
	)
}

// hasMail reports whether the host has configured what mails contain.
func (c Config) hasMail() bool { return c.SMTP.URL != "" || c.Mail.Key != "" }

func (c Config) validateMail() error {
	if !c.hasMail() {
		return nil
	}
	return errors.Join(below("Config.SMTP.", c.SMTP.Validate()), below("Config.Mail.", c.Mail.Validate()))
}

// validateDefaults checks the features, and if they are valid the default rules.
func (c Config) validateDefaults() error {
	if _, err := pushrule.NewDefaults(c.Features); err != nil {
		return below("Config.Features: ", err)
	}
	_, err := pushrule.NewDefaults(c.Features, c.DefaultRules...)
	return below("Config.DefaultRules: ", err)
}

// below prefixes each line of an error with a path.
func below(path string, err error) error {
	if err == nil {
		return nil
	}
	return errors.New(path + strings.ReplaceAll(err.Error(), "\n", "\n"+path))
}

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
	// stops mails if Config.Mail has a key, and notifications if the host has unread counts and
	// a [module.NotifiedEvents]. With fx,
	// mount [RouteGroups], which also has the host's own groups.
	Groups []handlers.RouteGroup

	feed     *feed.Feed
	servers  *redisclient.Monitor // nil if the host has replaced all parts on Redis
	delivery *delivery.Delivery   // nil without delivery
	mailer   *smtp.Mailer         // nil if the host sends no mail, or has its own
	metrics  *metrics.Set
	features []pushrule.Feature
	log      *zap.Logger

	hasRun           atomic.Bool
	hasNotifications bool     // see [Push.Owns]
	fromHost         []string // interfaces and the types of the host's parts
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

	Channels []module.Channel // for kinds of pushers of the host's own

	Mailer       module.Mailer       // replaces Config.SMTP
	MailComposer module.MailComposer // replaces the texts of Config.Mail
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
	b, err := newBuilder(hostParts{
		Config: cfg, Log: o.Log, Client: client, Registerer: o.Metrics, Tracers: o.Tracers,
	})
	if err != nil {
		return nil, err
	}
	if o.Unread != nil && o.Stores.Unread == nil {
		if o.Stores.Unread, err = b.unreadStore(); err != nil {
			return nil, err
		}
	}
	stores, err := b.stores(o.Stores)
	if err != nil {
		return nil, err
	}
	changes, err := b.feed(stores, o.Listeners, o.PusherListeners)
	if err != nil {
		return nil, err
	}
	var channels []module.Channel
	if o.Delivery != nil {
		channels = o.Delivery.Channels
	}
	services, err := b.service(stores, changes, o.Accounts, o.Import, channels)
	if err != nil {
		return nil, err
	}
	rules, pushers := services.Rules(), services.Pushers()
	host := services.Host(rules)
	p := parts{
		Rules: rules, Pushers: pushers, Host: host, Sync: changes.Sync(rules), Health: b.health(), Stores: stores, Service: services, Feed: changes,
	}
	var events module.NotifiedEvents
	if o.Unread != nil {
		p.Unread, events = &counts{b.unread(stores.Unread)}, o.Unread.Events
	}
	if o.Delivery != nil {
		if p.Delivery, err = b.newDelivery(*o.Delivery, host, changes, p.Unread); err != nil {
			return nil, err
		}
	}
	if p.Groups, err = b.groups(rules, pushers, host, p.Unread, events); err != nil {
		return nil, err
	}
	return b.push(p), b.finish()
}

// Handler serves the module's endpoints for hosts without echo; see [handlers.Handler].
func (p *Push) Handler(auth handlers.Auth) http.Handler {
	return handlers.Handler(auth, p.log, p.Groups...)
}

// Owns reports whether a request is for [Push.Handler], by its complete path: call it
// before stripping a prefix.
func (p *Push) Owns(r *http.Request) bool {
	return handlers.Owns(r) || p.hasNotifications && handlers.OwnsNotifications(r)
}

// UnstableFeatures returns what Config.Features adds to unstable_features in the
// host's GET /_matrix/client/versions. The map is the caller's.
func (p *Push) UnstableFeatures() map[string]bool {
	flags := map[string]bool{}
	for _, feature := range p.features {
		if feature.Flag != "" {
			flags[feature.Flag] = true
		}
	}
	return flags
}

// Check must be called at the start of a host. It returns an error if the module cannot
// work with its Redis, and logs a warning for each harmful setting. A line at level info
// names what the host has replaced and added, and the kinds of pushers that it sends to. It takes at most
// Config.Servers.StartTimeout and, with delivery, Config.Redis.OperationTimeout more.
func (p *Push) Check(ctx context.Context) (err error) {
	if p.servers != nil {
		err = p.servers.Check(ctx)
	}
	if err == nil && p.delivery != nil {
		err = p.delivery.Check(ctx)
	}
	if err != nil {
		return &startError{err}
	}
	_, withoutUnread := p.Unread.(noUnread)
	var kinds []pusher.Kind
	if p.delivery != nil {
		kinds = p.delivery.Kinds()
	}
	p.log.Info("pushfx is ready", zap.Strings("host_parts", p.fromHost),
		zap.Bool("delivery", p.delivery != nil), zap.Any("sends_to", kinds), zap.Bool("unread", !withoutUnread))
	return nil
}

// startError is an error of [Push.Check]. Its text has the causes of faults: no client sees it.
type startError struct{ cause error }

func (e *startError) Error() string { return "pushfx: " + fault.Details(e.cause) }
func (e *startError) Unwrap() error { return e.cause }

// Run does all background work until ctx ends: it notifies listeners of changes,
// monitors the Redis servers and, with delivery, sends
// notifications. It returns when all work has ended, up to Config.Delivery.DrainTimeout
// later. Run it once on every host: a second call logs an error and returns.
func (p *Push) Run(ctx context.Context) {
	if p.hasRun.Swap(true) {
		p.log.Error("Push.Run was called twice, the second call does nothing")
		return
	}
	defer p.metrics.Unregister()
	var running sync.WaitGroup
	running.Go(func() { p.feed.Run(ctx) })
	if p.servers != nil {
		running.Go(func() { p.servers.Run(ctx) })
	}
	if p.delivery != nil {
		running.Go(func() { p.delivery.Run(ctx) })
	}
	running.Wait()
	if p.mailer != nil {
		_ = p.mailer.Close() // has no error
	}
}

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
	fx.Provide(newBuilder), // [Delivery] needs the builder, too
	fx.Provide(fx.Private,
		fx.Annotate((*builder).groups, fx.ParamTags("", "", "", "", `optional:"true"`, `optional:"true"`)),
		fx.Annotate(func(
			b *builder, rules module.RuleStore, pushers module.PusherStore, pushkeys module.PushkeyIndex, unread module.UnreadStore,
		) (module.Stores, error) {
			return b.stores(module.Stores{Rules: rules, Pushers: pushers, Pushkeys: pushkeys, Unread: unread})
		}, fx.ParamTags("", "", "", "", `optional:"true"`)),
	),
	fx.Provide(
		(*builder).ruleStore,
		(*builder).pusherStore,
		(*builder).pushkeyIndex,
		(*builder).health,
		fx.Annotate((*builder).feed, fx.ParamTags("", "", ChangeListeners, PusherListeners)),
		fx.Annotate((*builder).service, fx.ParamTags("", "", "", `optional:"true"`, `optional:"true"`, Channels)),
		(*service.Service).Rules,
		(*service.Service).Pushers,
		(*service.Service).Host,
		(*feed.Feed).Sync,
		fx.Annotate(func(own ownGroups) []handlers.RouteGroup { return own }, fx.ResultTags(`group:"push.route_groups,flatten"`)),
		fx.Annotate(notifierOf, fx.ParamTags(`optional:"true"`)),
		fx.Annotate(unreadOf, fx.ParamTags(`optional:"true"`)),
		fx.Annotate(eventsOf, fx.ParamTags("", `optional:"true"`)),
		(*builder).push,
	),
	fx.Decorate(func(log *zap.Logger) *zap.Logger { return log.Named("push") }),
	fx.Invoke(run),
)

// Delivery adds a [module.Notifier], which sends notifications, and a [module.EventService],
// which hands events over to it, to a host with [Module].
// A [module.Unread] and a [module.Attention] are optional. The host may replace or wrap
// the [module.Notifier], the [module.Gateway], the [module.DeliveryQueue], the [module.Mailer] and the
// [module.MailComposer]. The Mailer is nil if Config.SMTP.URL is empty, the
// MailComposer if Config.Mail.Key is empty, too.
var Delivery = fx.Module("push_delivery", once("pushfx.Delivery"), besideModule("pushfx.Delivery"), fx.Provide(
	(*builder).deliveryQueue,
	(*builder).gateway,
	(*builder).mailer,
	(*builder).mailComposer,
	fx.Annotate((*builder).delivery, fx.ParamTags("", "", "", "", "", "", "", `optional:"true"`, `optional:"true"`, Channels)),
	func(notifier module.Notifier, events module.EventService) *notifications {
		return &notifications{notifier, events}
	},
))

// notifications are the calls of a host that includes [Delivery], wrapped or replaced by the
// host.
type notifications struct {
	notifier module.Notifier
	events   module.EventService
}

// Unread adds a [module.UnreadService], which counts unread notifications, to a host with
// [Module]. It is the [module.Unread] of [Delivery]. With a [module.NotifiedEvents] of the
// host, GET /notifications is served, too. The host may replace or wrap the
// [module.UnreadService] and the [module.UnreadStore].
var Unread = fx.Module("push_unread", once("pushfx.Unread"), besideModule("pushfx.Unread"), fx.Provide(
	(*builder).unreadStore,
	(*builder).unread,
	func(service module.UnreadService) module.Unread { return service },
	func(service module.UnreadService) *counts { return &counts{service} },
))

// counts has the unread counts of a host that includes [Unread], wrapped or replaced by the
// host.
type counts struct{ service module.UnreadService }

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

// AsRouteGroup annotates a constructor of a [handlers.RouteGroup] to join
// [RouteGroups].
func AsRouteGroup(constructor any) any {
	return fx.Annotate(constructor, fx.As(new(handlers.RouteGroup)), fx.ResultTags(RouteGroups))
}

// AsChangeListener annotates a constructor of a [module.ChangeListener] to join
// [ChangeListeners].
func AsChangeListener(constructor any) any {
	return fx.Annotate(constructor, fx.As(new(module.ChangeListener)), fx.ResultTags(ChangeListeners))
}

// AsChannel annotates a constructor of a [module.Channel] to join [Channels].
func AsChannel(constructor any) any {
	return fx.Annotate(constructor, fx.As(new(module.Channel)), fx.ResultTags(Channels))
}

// AsPusherListener annotates a constructor of a [module.PusherListener] to join
// [PusherListeners].
func AsPusherListener(constructor any) any {
	return fx.Annotate(constructor, fx.As(new(module.PusherListener)), fx.ResultTags(PusherListeners))
}

func run(lc fx.Lifecycle, b *builder, p *Push) error {
	if err := b.finish(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	lc.Append(fx.Hook{
		OnStart: func(start context.Context) error {
			if err := p.Check(start); err != nil {
				return err
			}
			go func() {
				defer close(ended)
				p.Run(ctx)
			}()
			return nil
		},
		OnStop: func(stop context.Context) error {
			cancel()
			select {
			case <-ended:
				return nil
			case <-stop.Done():
				return fmt.Errorf("pushfx: a change listener or a push gateway does not return: %w", stop.Err())
			}
		},
	})
	return nil
}

// hostParts are what the host provides: in its container, or as arguments of [New].
type hostParts struct {
	fx.In

	Config Config
	Log    *zap.Logger

	Client        redis.UniversalClient `optional:"true"`
	ClusterClient *redis.ClusterClient  `optional:"true"` // replaces Client
	NodeClient    *redis.Client         `optional:"true"` // replaces Client

	Tracers    trace.TracerProvider  `optional:"true"`
	Registerer prometheus.Registerer `optional:"true"`
	Registry   *prometheus.Registry  `optional:"true"` // replaces Registerer
}

func (g *hostParts) useConcreteTypes() {
	if client := reflect.ValueOf(g.Client); client.Kind() == reflect.Pointer && client.IsNil() {
		g.Client = nil // otherwise the first call would panic
	}
	if g.Client == nil && g.ClusterClient != nil {
		g.Client = g.ClusterClient
	}
	if g.Client == nil && g.NodeClient != nil {
		g.Client = g.NodeClient
	}
	if g.Registerer == nil && g.Registry != nil {
		g.Registerer = g.Registry
	}
}

// builder has a constructor for each part of the module. [New] calls them in order;
// the container calls each one that the host has not replaced.
type builder struct {
	host     hostParts
	observer observe.Observer
	metrics  *metrics.Set
	defaults pushrule.Defaults
	servers  *redisclient.Monitor
	server   *handlers.Server
	onRedis  bool // some part is on Redis; see [builder.redis]

	pipelines        *redisclient.Pipelines // shared by all stores on the client
	hasNotifications bool                   // the groups have GET /notifications
	hasDelivery      bool
	hasChannels      bool
	ownMailer        *smtp.Mailer
	fromHost         []string // see [builder.note]
	nils             []error
}

func isNil(part any) bool {
	value := reflect.ValueOf(part)
	return value.Kind() == reflect.Pointer && value.IsNil()
}

// note records a part that comes from the host, for the log of the start, and a nil pointer as an
// error for finish. Usual has the type of the module's own part; nil: the module has none.
func (b *builder) note(name string, part, usual any) {
	if isNil(part) {
		b.nils = append(b.nils, fmt.Errorf("pushfx: the %s is a nil %T: %s", name, part, noNil))
	}
	if part != nil && reflect.TypeOf(part) != reflect.TypeOf(usual) {
		b.fromHost = append(b.fromHost, fmt.Sprintf("%s %T", name, part))
	}
}

func newBuilder(host hostParts) (*builder, error) {
	cfg := host.Config
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("pushfx: invalid config: %w", err)
	}
	host.useConcreteTypes()
	host.Log = host.Log.WithOptions(zap.AddStacktrace(zap.DPanicLevel)) // errors include their cause
	b := &builder{host: host, metrics: metrics.NewSet(host.Registerer, cfg.DeliveryMetrics)}
	b.observer = b.metrics.Observer()
	if host.Tracers != nil {
		b.observer = tracing.New(host.Tracers, b.observer)
	}
	b.observer = logging.New(host.Log, b.observer)
	b.servers = redisclient.NewMonitor(host.Client, cfg.Servers, cfg.Redis.Durability, b.observer)
	b.metrics.Add(metrics.NewEvicting(b.servers.EvictingMasters), metrics.NewClockOffset(b.servers.Clock().Offset))
	var errs [2]error
	b.defaults, errs[0] = pushrule.NewDefaults(cfg.Features, cfg.DefaultRules...)
	b.server, errs[1] = handlers.NewServer(cfg.Handlers, b.observer, host.Log)
	return b, errors.Join(errs[:]...)
}

func (b *builder) ruleStore() (module.RuleStore, error) {
	b.servers.Require("push rules", "GET", b.keys().Rules("@"))
	return rulestore.New(b.redis())
}

func (b *builder) pusherStore() (module.PusherStore, error) {
	b.servers.Require("pushers", "HLEN", b.keys().Pushers("@"))
	return pusherstore.New(b.redis())
}

func (b *builder) pushkeyIndex() (module.PushkeyIndex, error) {
	b.servers.Require("pushkeys", "GET", b.keys().Pushkey(""))
	return pusherstore.NewIndex(b.redis())
}

func (b *builder) keys() stored.Keys { return stored.Keys{Prefix: b.host.Config.Redis.KeyPrefix} }

// redis returns the arguments of constructors of parts on Redis. It records that such a
// part exists, because the host may replace all of them. [builder.finish] reports a
// missing client: an error here would list all constructors that the container was
// calling.
func (b *builder) redis() (redis.UniversalClient, rediscommit.Config, rediscommit.Options) {
	b.onRedis = true
	client := b.host.Client
	if client == nil {
		client = redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, errNoClient }})
	}
	if b.pipelines == nil {
		b.pipelines = redisclient.NewPipelines(client, b.observer)
	}
	return client, b.host.Config.Redis, rediscommit.Options{Now: b.servers.Clock().Now, Pipelines: b.pipelines, Observer: b.observer}
}

var errNoClient = errors.New("pushfx: there is no Redis client, or it is nil: provide a redis.UniversalClient, *redis.Client or *redis.ClusterClient")

func (b *builder) stores(s module.Stores) (module.Stores, error) {
	var errs [3]error
	if s.Rules == nil {
		s.Rules, errs[0] = b.ruleStore()
	}
	if s.Pushers == nil {
		s.Pushers, errs[1] = b.pusherStore()
	}
	if s.Pushkeys == nil {
		s.Pushkeys, errs[2] = b.pushkeyIndex()
	}
	if s.Now == nil {
		s.Now = b.servers.Clock().Now
	}
	return s, errors.Join(errs[:]...)
}

func (b *builder) unreadStore() (module.UnreadStore, error) {
	b.servers.Require("unread counts", "LRANGE", b.keys().Unread("@"), 0, 0)
	return redisunread.New(b.redis())
}

func (b *builder) unread(store module.UnreadStore) *unread.Service {
	b.metrics.AddUnread()
	return unread.New(store, b.host.Config.Unread, b.host.Config.Delivery.MaxAge, b.host.Config.Redis.Durability.MaxWait(), b.servers.Clock().Now, b.observer)
}

const noNil = "leave it out of Options, or let its constructor return one"

func (b *builder) health() module.Health { return b.servers }

func (b *builder) feed(stores module.Stores, rules []module.ChangeListener, pushers []module.PusherListener) (*feed.Feed, error) {
	for _, listener := range rules {
		if listener == nil {
			return nil, fmt.Errorf("pushfx: a ChangeListener is nil: %s", noNil)
		}
		b.note("ChangeListener", listener, nil)
	}
	for _, listener := range pushers {
		if listener == nil {
			return nil, fmt.Errorf("pushfx: a PusherListener is nil: %s", noNil)
		}
		b.note("PusherListener", listener, nil)
	}
	stores.Rules = service.ObservedRules(stores.Rules, b.observer)
	changes, err := feed.New(stores, b.host.Config.Changes, b.observer, feed.Listeners{Rules: rules, Pushers: pushers})
	if err == nil {
		b.metrics.Add(metrics.Feed(changes.Stats)...)
	}
	return changes, err
}

func (b *builder) service(
	stores module.Stores, changes *feed.Feed, accounts module.Accounts, source module.ImportSource, channels []module.Channel,
) (*service.Service, error) {
	b.note("Accounts", accounts, nil)
	b.note("ImportSource", source, nil)
	cfg := b.host.Config
	cfg.PusherPolicy.Kinds = maps.Clone(cfg.PusherPolicy.Kinds)
	for _, channel := range channels {
		if channel == nil || isNil(channel) {
			return nil, fmt.Errorf("pushfx: a Channel is nil: %s", noNil)
		}
		b.note("Channel", channel, nil)
		if cfg.PusherPolicy.Kinds == nil {
			cfg.PusherPolicy.Kinds = pusher.Kinds{}
		}
		cfg.PusherPolicy.Kinds[channel.Kind()] = channel.CheckPusher
	}
	b.hasChannels = len(channels) > 0
	return service.New(stores, changes, service.Options{
		Defaults: b.defaults, Limits: cfg.RuleLimits, Policy: cfg.PusherPolicy, Accounts: accounts, ImportSource: source,
		Observer: b.observer, Mail: b.mailTokens(),
	}), nil
}

func (b *builder) mailTokens() *mail.Tokens {
	if b.host.Config.Mail.Key == "" {
		return nil
	}
	return mail.NewTokens(b.host.Config.Mail.Key)
}

// ownGroups are the module's route groups, without the host's in [RouteGroups].
type ownGroups []handlers.RouteGroup

var errEventsWithoutUnread = errors.New("pushfx: a NotifiedEvents needs unread counts: include pushfx.Unread, or provide no NotifiedEvents")

// groups omits GET /notifications without events.
func (b *builder) groups(
	rules module.RuleService, pushers module.PusherService, host module.HostService, unread *counts, events module.NotifiedEvents,
) (ownGroups, error) {
	all := ownGroups{b.server.PushRules(rules), b.server.Pushers(pushers), b.server.AccountData(host)}
	if b.host.Config.Mail.Key != "" {
		all = append(all, b.server.Unsubscribe(host))
	}
	if events == nil {
		return all, nil
	}
	if unread == nil {
		return nil, errEventsWithoutUnread
	}
	b.hasNotifications = true
	b.note("NotifiedEvents", events, nil)
	return append(all, b.server.Notifications(unread.service, events)), nil
}

type parts struct {
	fx.In

	Rules   module.RuleService
	Pushers module.PusherService
	Host    module.HostService
	Sync    module.SyncService
	Health  module.Health
	Stores  module.Stores
	Groups  ownGroups
	Service *service.Service
	Feed    *feed.Feed

	Delivery      *delivery.Delivery `optional:"true"`
	Notifications *notifications     `optional:"true"`
	Unread        *counts            `optional:"true"`
}

func (b *builder) push(p parts) *Push {
	if p.Notifications == nil {
		notifier, _ := notifierOf(p.Delivery) // without delivery, each call of notifier returns the error
		p.Notifications = &notifications{notifier, eventsOf(notifier, p.Unread)}
	}
	push := &Push{
		Rules: p.Rules, Pushers: p.Pushers, Host: p.Host, Sync: p.Sync, Health: p.Health, Unread: noUnread{},
		Notifier: p.Notifications.notifier, Events: p.Notifications.events,
		Stores: p.Stores, Clock: b.servers.Clock(), Groups: p.Groups,
		feed: p.Feed, delivery: p.Delivery, mailer: b.ownMailer, metrics: b.metrics,
		features: b.host.Config.Features, log: b.host.Log, hasNotifications: b.hasNotifications,
	}
	if b.onRedis {
		push.servers = b.servers
	}
	if p.Unread != nil {
		push.Unread = p.Unread.service
		b.note("UnreadService", push.Unread, (*unread.Service)(nil))
	}
	b.noteParts(p)
	push.fromHost = slices.Sorted(slices.Values(b.fromHost))
	return push
}

func (b *builder) noteParts(p parts) {
	b.note("RuleStore", p.Stores.Rules, (*rulestore.Store)(nil))
	b.note("PusherStore", p.Stores.Pushers, (*pusherstore.Store)(nil))
	b.note("PushkeyIndex", p.Stores.Pushkeys, (*pusherstore.Index)(nil))
	b.note("UnreadStore", p.Stores.Unread, (*redisunread.Store)(nil))
	b.note("RuleService", p.Rules, p.Service.Rules())
	b.note("PusherService", p.Pushers, p.Service.Pushers())
	b.note("HostService", p.Host, p.Service.Host(p.Rules))
	b.note("SyncService", p.Sync, p.Feed.Sync(p.Rules))
	if p.Delivery != nil {
		b.note("Notifier", p.Notifications.notifier, p.Delivery)
		b.note("EventService", p.Notifications.events, (*handover.Service)(nil))
	}
	b.note("Health", p.Health, b.servers)
}

func (b *builder) finish() error {
	if b.onRedis && b.host.Client == nil {
		return errNoClient
	}
	if b.hasChannels && !b.hasDelivery {
		return errChannelWithoutDelivery
	}
	if b.host.Config.SMTP.URL != "" && !b.hasDelivery {
		return errMailWithoutDelivery
	}
	if b.nils != nil {
		return errors.Join(b.nils...)
	}
	err := b.metrics.Register()
	var registered prometheus.AlreadyRegisteredError
	if errors.As(err, &registered) {
		return fmt.Errorf("%w: give each Push a prometheus.Registerer of its own", err)
	}
	return err
}

var errNoDelivery = errors.New("pushfx: there is no Notifier without delivery: include pushfx.Delivery beside pushfx.Module, or set Options.Delivery")

type noNotifier struct{}

func (noNotifier) Decide(context.Context, module.Event, []match.Member) (module.Decisions, error) {
	return nil, errNoDelivery
}

func (noNotifier) Notify(context.Context, module.Event, module.Decisions) error {
	return errNoDelivery
}

func (noNotifier) UpdateBadges(context.Context, ...mxid.UserID) error { return errNoDelivery }

// notifierOf returns a Notifier and an error. Without delivery, each call of the
// Notifier returns the error. An fx host that asks for a Notifier gets the error at
// start.
func notifierOf(d *delivery.Delivery) (module.Notifier, error) {
	if d == nil {
		return noNotifier{}, errNoDelivery
	}
	return d, nil
}

var errNoUnread = errors.New("pushfx: there is no UnreadService without unread counts: include pushfx.Unread beside pushfx.Module, or set Options.Unread")

type noUnread struct{}

func (noUnread) States(_ context.Context, events []module.UserEvent) []module.Result[module.UnreadState] {
	return slices.Repeat([]module.Result[module.UnreadState]{{Err: errNoUnread}}, len(events))
}

func (noUnread) Add(context.Context, module.Place, module.Decisions) error { return errNoUnread }

func (noUnread) Read(context.Context, mxid.UserID, string, string, int64) error { return errNoUnread }

func (noUnread) Forget(context.Context, string, int64, []mxid.UserID) error { return errNoUnread }

func (noUnread) Rooms(context.Context, mxid.UserID, ...string) (map[string]module.RoomCounts, error) {
	return nil, errNoUnread
}

func (noUnread) Retain(context.Context, mxid.UserID, ...string) error { return errNoUnread }

func (noUnread) List(context.Context, mxid.UserID, module.UnreadQuery) (module.UnreadPage, error) {
	return module.UnreadPage{}, errNoUnread
}

// unreadOf returns the UnreadService of an app. An app that asks for one without [Unread]
// gets an error at start.
func unreadOf(s *unread.Service) (module.UnreadService, error) {
	if s == nil {
		return nil, errNoUnread
	}
	return s, nil
}

// eventsOf returns the EventService of an app. An app that asks for one without [Delivery] gets
// the error of its Notifier at start.
func eventsOf(notifier module.Notifier, unread *counts) module.EventService {
	if unread == nil {
		return handover.New(notifier, nil)
	}
	return handover.New(notifier, unread.service)
}

func (b *builder) deliveryQueue() (module.DeliveryQueue, error) {
	b.servers.Require("delivery", "ZCARD", b.keys().ShardGates(0))
	client, shared, options := b.redis()
	queue, err := redisqueue.New(client, shared, options)
	if err != nil {
		return nil, err
	}
	queue.Index.Shards = b.host.Config.Delivery.Shards
	return queue, nil
}

// gateway returns the gateway of hosts without their own. It connects to allowed
// addresses only.
func (b *builder) gateway() module.Gateway {
	guard := dialguard.New(b.host.Config.PusherPolicy.AllowedPrefixes...)
	client, transport := guard.Client(b.host.Config.Delivery.MaxPerGateway), guard.Transport(b.host.Config.Delivery.MaxPerGateway)
	transport.ResponseHeaderTimeout = 0
	client.Transport, client.Timeout = transport, 0 // the context of each request has Delivery.RequestTimeout
	return httppush.NewGateway(client)
}

var (
	errChannelWithoutDelivery = errors.New("pushfx: a Channel needs delivery: include pushfx.Delivery beside pushfx.Module")

	errMailWithoutDelivery = errors.New("pushfx: Config.SMTP needs delivery: include pushfx.Delivery beside pushfx.Module, or set Options.Delivery")
	errMailWithoutEmail    = errors.New("pushfx: mail needs Config.PusherPolicy.Email, which confirms that an address is the user's")
	errMailWithoutTexts    = errors.New("pushfx: a Mailer needs Config.Mail or a MailComposer")
)

// mailer returns nil if the host has no mail server.
func (b *builder) mailer() (module.Mailer, error) {
	if b.host.Config.SMTP.URL == "" {
		return nil, nil
	}
	var err error
	b.ownMailer, err = smtp.New(b.host.Config.SMTP)
	return b.ownMailer, err
}

// mailComposer returns nil if the host configures no mails.
func (b *builder) mailComposer() (module.MailComposer, error) {
	if !b.host.Config.hasMail() {
		return nil, nil
	}
	return mail.NewComposer(b.host.Config.Mail)
}

func (b *builder) delivery(
	queue module.DeliveryQueue, gateway module.Gateway, mailer module.Mailer, composer module.MailComposer,
	host module.HostService, feed *feed.Feed, counts module.Unread, attention module.Attention, channels []module.Channel,
) (*delivery.Delivery, error) {
	b.hasDelivery = true
	confirm := b.host.Config.PusherPolicy.Email
	switch {
	case mailer != nil && confirm == nil:
		return nil, errMailWithoutEmail
	case mailer != nil && composer == nil:
		return nil, errMailWithoutTexts
	}
	b.note("Mailer", mailer, (*smtp.Mailer)(nil))
	b.note("MailComposer", composer, (*mail.Composer)(nil))
	b.note("DeliveryQueue", queue, (*redisqueue.Queue)(nil))
	b.note("Gateway", gateway, (*httppush.Gateway)(nil))
	b.note("Unread", counts, (*unread.Service)(nil))
	b.note("Attention", attention, nil)
	d, err := delivery.New(delivery.Seams{
		Queue: queue, Gateway: gateway, Host: host, Feed: feed, Unread: counts, Attention: attention,
		Mailer: mailer, MailComposer: composer, ConfirmAddress: confirm, Channels: channels,
		Slow: b.host.Config.Redis.Durability.MaxWait(), Now: b.servers.Clock().Now, Observer: b.observer,
	}, b.host.Config.Delivery)
	if err != nil {
		return nil, err
	}
	b.metrics.AddDelivery(d.Stats)
	return d, nil
}

func (b *builder) newDelivery(
	o DeliveryOptions, host module.HostService, feed *feed.Feed, unread *counts,
) (*delivery.Delivery, error) {
	if o.Unread == nil && unread != nil {
		o.Unread = unread.service
	}
	if o.Queue == nil {
		queue, err := b.deliveryQueue()
		if err != nil {
			return nil, err
		}
		o.Queue = queue
	}
	if o.Gateway == nil {
		o.Gateway = b.gateway()
	}
	var errs [2]error
	if o.Mailer == nil {
		o.Mailer, errs[0] = b.mailer()
	}
	if o.MailComposer == nil {
		o.MailComposer, errs[1] = b.mailComposer()
	}
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	return b.delivery(o.Queue, o.Gateway, o.Mailer, o.MailComposer, host, feed, o.Unread, o.Attention, o.Channels)
}
