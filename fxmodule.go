// Package pushfx is a plugin for Matrix homeservers that serves push rules and
// pushers: an fx module that gives the host echo route groups for the eleven
// endpoints, the domain service behind them, and stores on Redis.
//
// The host includes [Module], provides a redis.UniversalClient and a
// *zap.Logger, mounts the route groups (tagged [RouteGroups]) with its own auth
// middleware, and tells who the user is with [handlers.WithRequester]. Every
// interface of package module can be replaced or wrapped with fx.Replace and
// fx.Decorate. A host without fx calls [New], one without echo
// [Push.Handler].
package pushfx

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/delivery/dialguard"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/observe/logging"
	"github.com/pushfx/pushfx/module/observe/metrics"
	"github.com/pushfx/pushfx/module/observe/tracing"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/pusherstore"
	"github.com/pushfx/pushfx/rulestore"
)

// The value groups of the module, as fx tags.
const (
	// RouteGroups is the group of []handlers.RouteGroup that the host mounts.
	RouteGroups = `group:"push.route_groups"`

	// ChangeListeners is the group of []module.ChangeListener that hear of
	// every change to push rules, whichever host made it.
	ChangeListeners = `group:"push.change_listeners"`
)

// Config configures the module: the Configs of its parts, each of which says what
// its fields mean, what their units are and what they default to. Change it with
//
//	fx.Decorate(func(c pushfx.Config) pushfx.Config { c.Redis.KeyPrefix = "hs1:"; return c })
type Config struct {
	Redis        rediscommit.Config // how the stores keep their data: keys, durability, timeout
	Servers      redisclient.Config // what the Redis servers must be like for a host to start
	Handlers     handlers.Config    // bounds on requests
	RuleLimits   pushrule.Limits    // bounds on what users store in their push rules
	PusherPolicy pusher.Policy      // which pushers may be set
	Changes      module.FeedConfig  // notifying listeners and syncs of changes

	// What follows is for hosts that include [Delivery].
	Delivery        delivery.Config        // sending notifications
	DeliveryMetrics metrics.DeliveryConfig // counting them

	// Features add the server-default rules of proposals, such as [pushrule.Polls].
	// DefaultRules are the host's own. Stored sets get and lose such rules with
	// [module.HostService.RefreshDefaults]; users' settings stay. All hosts of a Redis
	// must have the same: with differing hosts, the last refresh decides, and a new
	// user gets the rules of the host that creates the set. The start does not compare
	// hosts, so that features can be turned on host by host. Default: none.
	Features     []pushrule.Feature
	DefaultRules []pushrule.DefaultRule
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Redis:        rediscommit.DefaultConfig(),
		Servers:      redisclient.DefaultConfig(),
		Handlers:     handlers.DefaultConfig(),
		RuleLimits:   pushrule.DefaultLimits(),
		PusherPolicy: pusher.DefaultPolicy(),
		Changes:      module.DefaultFeedConfig(),

		Delivery: delivery.DefaultConfig(),
	}
}

// Validate joins an error for each field that is not as its comment says. Each
// begins with the field's path: "Config.Handlers.MaxBodyBytes is 0, ...".
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
		c.validateDefaults(),
	)
}

// validateDefaults checks the features, and if they are valid the default rules.
func (c Config) validateDefaults() error {
	if _, err := pushrule.NewDefaults(c.Features); err != nil {
		return below("Config.Features: ", err)
	}
	_, err := pushrule.NewDefaults(c.Features, c.DefaultRules...)
	return below("Config.DefaultRules: ", err)
}

// below puts a path before each line of an error: joined errors have one each.
func below(path string, err error) error {
	if err == nil {
		return nil
	}
	return errors.New(path + strings.ReplaceAll(err.Error(), "\n", "\n"+path))
}

// Push is the whole module: what a host serves, what it calls, and the background
// work. [New] makes one, and so does [Module] from what is in the host's container.
type Push struct {
	Rules   module.RuleService   // the push rule operations
	Pushers module.PusherService // the pusher operations
	Host    module.HostService   // what the host's own code calls
	Sync    module.SyncService   // what is new in a user's push rules
	Health  module.Health        // for the readiness probe

	// Notifier sends notifications. Without [Delivery], or [Options.Delivery], its
	// calls fail.
	Notifier module.Notifier

	Stores module.Stores // where the services keep their data

	// Clock is that of Redis, measured by [Push.Check] and while [Push.Run] runs.
	Clock *redisclient.Clock

	// Groups are the endpoints: push rules, pushers, and the account data of
	// m.push_rules.
	Groups []handlers.RouteGroup

	service  *module.Service
	servers  *redisclient.Monitor // nil if the host has replaced all that is on Redis
	delivery *delivery.Delivery   // nil if the host has none
	metrics  *metrics.Set
	features []pushrule.Feature
	log      *zap.Logger
}

// Options are what a host may give to [New]. The zero value takes all defaults. A
// host whose parts need the module gives a struct that it fills later; see the
// example.
type Options struct {
	Log       *zap.Logger             // nil logs nothing
	Accounts  module.Accounts         // who is logged in
	Import    module.ImportSource     // has users who are still to be imported
	Listeners []module.ChangeListener // hear of every change
	Metrics   prometheus.Registerer   // gets the module's metrics
	Tracers   trace.TracerProvider    // gets the module's traces

	// Stores replace the module's own, one by one. A host that replaces all three
	// needs no Redis client.
	Stores module.Stores

	// Delivery is for hosts that send notifications. Nil is none.
	Delivery *DeliveryOptions
}

// DeliveryOptions are what a host without fx may give to delivery. The zero value
// takes all defaults.
type DeliveryOptions struct {
	Unread    module.Unread        // what the host knows of what users have read
	Attention module.Attention     // whether users look elsewhere
	Gateway   module.Gateway       // in the place of requests by HTTP
	Queue     module.DeliveryQueue // in the place of Redis
}

// New returns the module on a Redis client, which stays the host's and must read
// from masters. It does no I/O and starts nothing: call [Push.Check] before
// requests are served, and keep [Push.Run] running until the host stops. It fails
// when cfg is not valid or the metrics are registered already.
func New(client redis.UniversalClient, cfg Config, o Options) (*Push, error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	b, err := newBuilder(given{
		Config: cfg, Log: o.Log, Client: client, Registerer: o.Metrics, Tracers: o.Tracers,
	})
	if err != nil {
		return nil, err
	}
	stores, err := b.stores(o.Stores)
	if err != nil {
		return nil, err
	}
	feed, err := b.feed(stores.Rules, o.Listeners...)
	if err != nil {
		return nil, err
	}
	service := b.service(stores, feed, o.Accounts, o.Import)
	rules, pushers := service.Rules(), service.Pushers()
	host := service.Host(rules)
	var sending *delivery.Delivery
	if o.Delivery != nil {
		if sending, err = b.newDelivery(*o.Delivery, host, feed); err != nil {
			return nil, err
		}
	}
	p := b.push(parts{
		Rules: rules, Pushers: pushers, Host: host, Sync: service.Sync(rules), Health: b.health(),
		Stores: stores, Groups: b.groups(rules, pushers, host), Service: service, Delivery: sending,
	})
	return p, b.finish()
}

// Handler serves the module's endpoints below "/_matrix/client/v3" and
// "/_matrix/client/r0", for hosts without echo. All other paths are 404
// M_UNRECOGNIZED: give it the requests that the module owns, see [Push.Owns].
func (p *Push) Handler(auth handlers.Auth) http.Handler {
	return handlers.Handler(auth, p.log, p.Groups...)
}

// Owns reports whether a request is for [Push.Handler], by its path alone. All
// other requests are for the host's own endpoints. Call it before any prefix of the
// path is stripped.
func (p *Push) Owns(r *http.Request) bool { return handlers.Owns(r) }

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

// Check is for the start of a host: it returns an error if the module cannot work
// with its Redis, and logs a warning for each setting that will hurt. It takes at
// most Config.Servers.StartTimeout, and with delivery Config.Redis.OperationTimeout
// more.
func (p *Push) Check(ctx context.Context) (err error) {
	if p.servers != nil {
		err = p.servers.Check(ctx)
	}
	if err == nil && p.delivery != nil {
		err = p.delivery.Check(ctx)
	}
	if err != nil {
		return fmt.Errorf("pushfx: %w", err)
	}
	return nil
}

// Run does all background work until ctx ends: it notifies listeners of changes,
// finishes claims to pushkeys that a host left undone, monitors the Redis servers,
// and sends notifications if the host has delivery. It returns when all of that has
// ended, which takes Config.Delivery.DrainTimeout if push gateways do not answer.
// Every host runs it, once.
func (p *Push) Run(ctx context.Context) {
	defer p.metrics.Unregister()
	var running sync.WaitGroup
	running.Go(func() { p.service.Run(ctx) })
	if p.servers != nil {
		running.Go(func() { p.servers.Run(ctx) })
	}
	if p.delivery != nil {
		running.Go(func() { p.delivery.Run(ctx) })
	}
	running.Wait()
}

// Module is [New] in the words of fx. It provides what [Push] holds, each on its
// own, so that the host can replace or decorate it, and the [Push] itself; it
// checks at start and runs until the stop.
//
// It needs a redis.UniversalClient (or *redis.Client, or *redis.ClusterClient)
// and a *zap.Logger, which stay the host's. It takes, if there is one, a
// [module.Accounts], a [module.ImportSource], a prometheus.Registerer (or
// *prometheus.Registry) and an OpenTelemetry trace.TracerProvider.
var Module = fx.Module("push",
	fx.Provide(DefaultConfig),
	fx.Provide(newBuilder), // for Delivery
	fx.Provide(fx.Private, (*builder).groups,
		func(b *builder, rules module.RuleStore, pushers module.PusherStore, pushkeys module.PushkeyIndex) (module.Stores, error) {
			return b.stores(module.Stores{Rules: rules, Pushers: pushers, Pushkeys: pushkeys})
		},
	),
	fx.Provide(
		(*builder).ruleStore,
		(*builder).pusherStore,
		(*builder).pushkeyIndex,
		(*builder).health,
		fx.Annotate((*builder).feed, fx.ParamTags("", "", ChangeListeners)),
		fx.Annotate((*builder).service, fx.ParamTags("", "", "", `optional:"true"`, `optional:"true"`)),
		(*module.Service).Rules,
		(*module.Service).Pushers,
		(*module.Service).Host,
		(*module.Service).Sync,
		fx.Annotate(func(own ownGroups) []handlers.RouteGroup { return own }, fx.ResultTags(`group:"push.route_groups,flatten"`)),
		fx.Annotate(notifierOf, fx.ParamTags(`optional:"true"`)),
		(*builder).push,
	),
	fx.Decorate(func(log *zap.Logger) *zap.Logger { return log.Named("push") }),
	fx.Invoke(run),
)

// Delivery is for hosts that send notifications: it stands beside [Module], and
// gives the host a [module.Notifier]. Without it nothing of it is started.
//
// It takes a [module.Unread] and a [module.Attention], where there are. The host
// may replace or wrap the [module.Notifier], the [module.Gateway] and the
// [module.DeliveryQueue]. Without fx, see [Options.Delivery].
var Delivery = fx.Module("push_delivery", fx.Provide(
	(*builder).deliveryQueue,
	(*builder).gateway,
	fx.Annotate((*builder).delivery, fx.ParamTags("", "", "", "", "", `optional:"true"`, `optional:"true"`)),
))

// AsRouteGroup annotates a constructor of a [handlers.RouteGroup], so that it
// joins [RouteGroups].
func AsRouteGroup(constructor any) any {
	return fx.Annotate(constructor, fx.As(new(handlers.RouteGroup)), fx.ResultTags(RouteGroups))
}

// AsChangeListener annotates a constructor of a [module.ChangeListener], so
// that it joins [ChangeListeners].
func AsChangeListener(constructor any) any {
	return fx.Annotate(constructor, fx.As(new(module.ChangeListener)), fx.ResultTags(ChangeListeners))
}

// run checks at the start of the app and runs until its stop, which waits for
// what runs to end.
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

// given is what the host gives: its container, or the arguments of [New].
type given struct {
	fx.In

	Config Config
	Log    *zap.Logger

	Client        redis.UniversalClient `optional:"true"`
	ClusterClient *redis.ClusterClient  `optional:"true"` // in the place of Client
	NodeClient    *redis.Client         `optional:"true"` // likewise

	Tracers    trace.TracerProvider  `optional:"true"`
	Registerer prometheus.Registerer `optional:"true"`
	Registry   *prometheus.Registry  `optional:"true"` // in the place of Registerer
}

func (g *given) useConcreteTypes() {
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

// builder has a constructor for each part of the module. [New] calls them one after
// the other; the container calls those that the host has not replaced.
type builder struct {
	host     given
	observer observe.Observer
	metrics  *metrics.Set
	defaults pushrule.Defaults
	servers  *redisclient.Monitor
	server   *handlers.Server
	waits    rediscommit.WaitLimiter // of all stores on the client
	onRedis  bool                    // something is kept on Redis; see [builder.redis]
}

func newBuilder(host given) (*builder, error) {
	cfg := host.Config
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("pushfx: invalid config: %w", err)
	}
	host.useConcreteTypes()
	host.Log = host.Log.WithOptions(zap.AddStacktrace(zap.DPanicLevel)) // an error names its cause
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

func (b *builder) ruleStore() (module.RuleStore, error)       { return rulestore.New(b.redis()) }
func (b *builder) pusherStore() (module.PusherStore, error)   { return pusherstore.New(b.redis()) }
func (b *builder) pushkeyIndex() (module.PushkeyIndex, error) { return pusherstore.NewIndex(b.redis()) }

// redis returns the arguments for what is kept on Redis, and notes that something is:
// what the host has replaced is not built. If the host has no client, [builder.finish]
// says so in one line; an error here would come with the container's whole chain.
func (b *builder) redis() (redis.UniversalClient, rediscommit.Config, rediscommit.Options) {
	b.onRedis = true
	client := b.host.Client
	if client == nil {
		client = redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, errNoClient }})
	}
	return client, b.host.Config.Redis, rediscommit.Options{Now: b.servers.Clock().Now, WaitLimiter: &b.waits, Observer: b.observer}
}

var errNoClient = errors.New("pushfx: there is no Redis client: provide a redis.UniversalClient, *redis.Client or *redis.ClusterClient")

// stores returns the host's stores, with the module's own for those that it does not have.
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

func (b *builder) health() module.Health { return b.servers }

func (b *builder) feed(store module.RuleStore, listeners ...module.ChangeListener) (*module.Feed, error) {
	feed, err := module.NewFeed(store, b.host.Config.Changes, b.observer, listeners...)
	if err == nil {
		b.metrics.Add(metrics.Feed(feed.Stats)...)
	}
	return feed, err
}

func (b *builder) service(
	stores module.Stores, feed *module.Feed, accounts module.Accounts, source module.ImportSource,
) *module.Service {
	cfg := b.host.Config
	return module.NewService(stores, feed, module.Options{
		Defaults: b.defaults, Limits: cfg.RuleLimits, Policy: cfg.PusherPolicy, Accounts: accounts, ImportSource: source,
		Observer: b.observer,
	})
}

// ownGroups are the module's own route groups; [RouteGroups] has the host's, too.
type ownGroups []handlers.RouteGroup

func (b *builder) groups(rules module.RuleService, pushers module.PusherService, host module.HostService) ownGroups {
	return ownGroups{b.server.PushRules(rules), b.server.Pushers(pushers), b.server.AccountData(host)}
}

// parts are what a [Push] is made of.
type parts struct {
	fx.In

	Rules   module.RuleService
	Pushers module.PusherService
	Host    module.HostService
	Sync    module.SyncService
	Health  module.Health
	Stores  module.Stores
	Groups  ownGroups
	Service *module.Service

	Delivery *delivery.Delivery `optional:"true"`
}

func (b *builder) push(p parts) *Push {
	notifier, _ := notifierOf(p.Delivery) // without delivery, its calls return the error
	push := &Push{
		Rules: p.Rules, Pushers: p.Pushers, Host: p.Host, Sync: p.Sync, Health: p.Health, Notifier: notifier,
		Stores: p.Stores, Clock: b.servers.Clock(), Groups: p.Groups,
		service: p.Service, delivery: p.Delivery, metrics: b.metrics,
		features: b.host.Config.Features, log: b.host.Log,
	}
	if b.onRedis {
		push.servers = b.servers
	}
	return push
}

// finish is the last step of [New] and [Module], when all is built.
func (b *builder) finish() error {
	if b.onRedis && b.host.Client == nil {
		return errNoClient
	}
	return b.metrics.Register()
}

// errNoDelivery is for a host that asks for a Notifier and has no delivery.
var errNoDelivery = errors.New("pushfx: there is no Notifier without delivery: include pushfx.Delivery beside pushfx.Module, or set Options.Delivery")

// noNotifier is the Notifier of a host without delivery.
type noNotifier struct{}

func (noNotifier) Decide(context.Context, module.Event, []match.Member) (module.Decisions, error) {
	return nil, errNoDelivery
}

func (noNotifier) Notify(context.Context, module.Event, string, module.Decisions) error {
	return errNoDelivery
}

func (noNotifier) UpdateBadges(context.Context, ...mxid.UserID) error { return errNoDelivery }

// notifierOf returns delivery, or, if there is none, a Notifier whose calls return the
// error, which a host with fx gets at start if it asks for a Notifier.
func notifierOf(d *delivery.Delivery) (module.Notifier, error) {
	if d == nil {
		return noNotifier{}, errNoDelivery
	}
	return d, nil
}

func (b *builder) deliveryQueue() (module.DeliveryQueue, error) {
	client, shared, options := b.redis()
	return redisqueue.New(client, shared, options)
}

// gateway returns what connects to the addresses that pushers may name.
func (b *builder) gateway() module.Gateway {
	guard := dialguard.New(b.host.Config.PusherPolicy.AllowedPrefixes...)
	client, transport := guard.Client(b.host.Config.Delivery.MaxPerGateway), guard.Transport(b.host.Config.Delivery.MaxPerGateway)
	transport.ResponseHeaderTimeout = 0
	client.Transport, client.Timeout = transport, 0 // the context of each request has Delivery.RequestTimeout
	return delivery.NewHTTPGateway(client)
}

func (b *builder) delivery(
	queue module.DeliveryQueue, gateway module.Gateway, host module.HostService, feed *module.Feed,
	unread module.Unread, attention module.Attention,
) (*delivery.Delivery, error) {
	d, err := delivery.New(delivery.Seams{
		Queue: queue, Gateway: gateway, Host: host, Feed: feed, Unread: unread, Attention: attention,
		Now: b.servers.Clock().Now, Observer: b.observer,
	}, b.host.Config.Delivery)
	if err != nil {
		return nil, err
	}
	b.metrics.AddDelivery(d.Stats)
	return d, nil
}

// newDelivery returns delivery as [New] makes it.
func (b *builder) newDelivery(o DeliveryOptions, host module.HostService, feed *module.Feed) (*delivery.Delivery, error) {
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
	return b.delivery(o.Queue, o.Gateway, host, feed, o.Unread, o.Attention)
}
