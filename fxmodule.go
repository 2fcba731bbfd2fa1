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
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/observe"
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

	// Observers is the group of []observe.Observer that are told what the module
	// does, beside its own metrics and tracing.
	Observers = `group:"push.observers"`
)

// Config configures the module. Change it with
//
//	fx.Decorate(func(c pushfx.Config) pushfx.Config { c.KeyPrefix = "hs1:"; return c })
type Config struct {
	// KeyPrefix stands before every Redis key. It has no braces. Hosts that
	// serve the same users share it; others on the same Redis differ. Default:
	// none.
	KeyPrefix string

	// OperationTimeout bounds what a request may take after its body has
	// arrived; past it, the answer is 503. The Redis client must honour
	// deadlines (ContextTimeoutEnabled). Above 0 and at most 30 s; default 5 s.
	OperationTimeout time.Duration

	// Durability says when a change counts as made. Default: when the Redis
	// master has it in memory.
	Durability rediscommit.Durability

	// StartTimeout bounds the check at start that Redis answers, keeps its keys
	// and can do what Durability asks for. Default 5 s.
	StartTimeout time.Duration

	// AllowEviction lets hosts run on a Redis that evicts keys when its memory is
	// full, and users lose their push rules. Default: false; such a Redis is
	// refused at start, and a host is not ready where it becomes so later.
	AllowEviction bool

	// MaxBodyBytes is the size in bytes that a request body may have. Default
	// 64 KiB.
	MaxBodyBytes int64

	// MaxJSONDepth is how deep a request body may nest. Default 64.
	MaxJSONDepth int

	// LargeEventBytes is the size in bytes from which a stored event is replaced
	// in another way; see [rulestore.Config]. Default 32 KiB.
	LargeEventBytes int

	// RuleLimits bounds what users may store in their push rules.
	RuleLimits pushrule.Limits

	// PusherPolicy says which pushers may be set.
	PusherPolicy pusher.Policy

	// DefaultRules are server-default rules of the host's own, beside those of
	// the specification. A set that is stored gets new ones with
	// [module.HostService.RefreshDefaults]. Default: none.
	DefaultRules []pushrule.DefaultRule

	// Changes is about notifying listeners and syncs of changes. Without a Report,
	// what goes wrong there is logged.
	Changes module.FeedConfig
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	http, rules := handlers.DefaultConfig(), rulestore.DefaultConfig()
	return Config{
		OperationTimeout: rules.Redis.OperationTimeout,
		Durability:       rules.Redis.Durability,
		StartTimeout:     5 * time.Second,
		MaxBodyBytes:     http.MaxBodyBytes,
		MaxJSONDepth:     http.MaxJSONDepth,
		LargeEventBytes:  rules.LargeEventBytes,
		RuleLimits:       pushrule.DefaultLimits(),
		PusherPolicy:     pusher.DefaultPolicy(),
		Changes:          module.DefaultFeedConfig(),
	}
}

// Validate joins an error for each field that is not as its comment says.
func (c Config) Validate() error {
	_, err := split(c)
	return err
}

// Push is the module as a host holds it: what it serves and calls, and what runs
// beside that. [New] makes one; so does [Module], of what the host has replaced
// and wrapped in its container.
type Push struct {
	Rules   module.RuleService   // the push rule operations
	Pushers module.PusherService // the pusher operations
	Host    module.HostService   // what the host's own code calls
	Sync    module.SyncService   // what is new in a user's push rules
	Health  module.Health        // for the readiness probe

	Stores module.Stores // where the services keep their data

	// Clock is that of Redis, measured by [Push.Check] and while [Push.Run] runs.
	Clock *redisclient.Clock

	// Groups are the endpoints: push rules, pushers, and the account data of
	// m.push_rules.
	Groups []handlers.RouteGroup

	service   *module.Service
	feed      *module.Feed
	redis     *redisStores
	evictions *redisclient.Evictions
	seen      *watchers
	log       *zap.Logger
}

// Options are what a host may give to [New]. The zero value takes all defaults.
type Options struct {
	Log       *zap.Logger             // nil logs nothing
	Accounts  module.Accounts         // who is logged in; see also [Push.SetAccounts]
	Listeners []module.ChangeListener // hear of every change
	Observers []observe.Observer      // are told what the module does
	Metrics   prometheus.Registerer   // gets the module's metrics
	Tracers   trace.TracerProvider    // gets the module's traces

	// Stores replace the module's own, one by one. A host that replaces all three
	// needs no Redis client.
	Stores module.Stores

	// WrapRules and WrapPushers return what the endpoints call instead of the
	// module's services. The host and sync services read single users' rules
	// through what WrapRules returns.
	WrapRules   func(module.RuleService) module.RuleService
	WrapPushers func(module.PusherService) module.PusherService
}

// New returns the module on a Redis client, which stays the host's and must read
// from masters. It does no I/O and starts nothing: call [Push.Check] before
// requests are served, and keep [Push.Run] running until the host stops. It fails
// when cfg is not valid or the metrics are registered already.
func New(client redis.UniversalClient, cfg Config, o Options) (*Push, error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	parts, err := split(cfg)
	if err != nil {
		return nil, err
	}
	seen := newWatchers(o.Metrics, o.Tracers, o.Observers...)
	own := newRedisStores(client, parts, o.Log, seen)
	if err := own.fill(&o.Stores); err != nil {
		return nil, err
	}
	feed, err := newFeed(o.Stores.Rules, parts, o.Log, seen, o.Listeners...)
	if err != nil {
		return nil, err
	}
	service := newService(o.Stores, feed, parts, o.Log, seen)
	service.SetAccounts(o.Accounts)
	rules, pushers := service.Rules(), service.Pushers()
	if o.WrapRules != nil {
		rules = o.WrapRules(rules)
	}
	if o.WrapPushers != nil {
		pushers = o.WrapPushers(pushers)
	}
	host := service.Host(rules)
	routes, err := newRoutes(rules, pushers, host, parts, o.Log, seen)
	if err != nil {
		return nil, err
	}
	p := &Push{
		Rules: rules, Pushers: pushers, Host: host, Sync: service.Sync(rules), Health: newHealth(own), Groups: routes.all(),
		Stores:  o.Stores,
		service: service, feed: feed, redis: own, seen: seen, log: o.Log,
	}
	return p, p.complete()
}

// complete is the last step of every construction.
func (p *Push) complete() error {
	if p.redis.inUse && p.redis.client == nil {
		return errNoClient
	}
	p.Clock = p.redis.clock
	p.evictions = redisclient.NewEvictions(p.redis.client, p.redis.cfg.start.redis, func(err error) {
		p.log.Warn("Redis may evict keys", zap.String("error", fault.Details(err)))
	})
	return p.seen.register(metrics.NewFeed(p.feed.Stats), metrics.NewEvicting(p.evictions.Masters),
		metrics.NewClockOffset(p.Clock.Offset))
}

// SetAccounts tells the module who is logged in, for hosts whose accounts exist
// only after the module does. Call it before the first request.
func (p *Push) SetAccounts(accounts module.Accounts) { p.service.SetAccounts(accounts) }

// Listen adds a listener, for hosts whose listeners exist only after the module
// does. Call it before [Push.Run].
func (p *Push) Listen(listener module.ChangeListener) { p.service.Listen(listener) }

// Handler serves the module's endpoints below a path prefix, for hosts without
// echo: one for "/_matrix/client/v3" with [handlers.V3], one for
// "/_matrix/client/r0" with [handlers.R0]. All other paths are 404
// M_UNRECOGNIZED. The prefix is empty if the host strips it.
func (p *Push) Handler(prefix string, d handlers.Dialect, auth handlers.Auth) http.Handler {
	return handlers.Handler(prefix, d, auth, p.log, p.Groups...)
}

// Check is for the start of a host: it returns why the module cannot work with
// its Redis, and warns of what will hurt. It takes Config.StartTimeout at most.
func (p *Push) Check(ctx context.Context) error {
	if !p.redis.inUse {
		return nil
	}
	cfg, client := p.redis.cfg.start, p.redis.client
	ctx, cancel := context.WithTimeout(ctx, cfg.timeout)
	defer cancel()
	for _, advice := range redisclient.Advise(client, cfg.operationTimeout) {
		p.log.Warn("a setting of the Redis client will hurt", zap.String("option", advice.Option),
			zap.String("why", advice.String()), zap.String("redis", redisclient.Address(client)))
	}
	if err := redisclient.Ping(ctx, client); err != nil {
		return fmt.Errorf("pushfx: %w", err)
	}
	if err := p.evictions.Check(ctx); err != nil {
		return fmt.Errorf("pushfx: %w", err)
	}
	p.Clock.Measure(ctx)
	shortages, err := cfg.durability.Check(ctx, client)
	for _, shortage := range shortages {
		p.log.Warn("no change will be acknowledged", zap.String("why", shortage))
	}
	if err != nil {
		return fmt.Errorf("pushfx: %w", err)
	}
	return nil
}

// Run does what goes on beside requests, until ctx ends: it tells listeners of
// changes, settles pushkeys, and watches the Redis servers. It returns when all
// of that has ended. Every host needs it, once.
func (p *Push) Run(ctx context.Context) {
	defer p.seen.unregister()
	var running sync.WaitGroup
	running.Go(func() { p.service.Run(ctx) })
	if p.redis.inUse {
		running.Go(func() { p.evictions.Run(ctx) })
		running.Go(func() { p.Clock.Run(ctx) })
	}
	running.Wait()
}

// Module is [New] in the words of fx. It provides what [Push] holds, each on its
// own, so that the host can replace or decorate it, and the [Push] itself; it
// checks at start and runs until the stop.
//
// It needs a redis.UniversalClient (or *redis.Client, or *redis.ClusterClient)
// and a *zap.Logger, which stay the host's. It takes, where there is one, a
// [module.Accounts], a prometheus.Registerer (or *prometheus.Registry) and an
// OpenTelemetry trace.TracerProvider.
var Module = fx.Module("push",
	fx.Provide(DefaultConfig),
	fx.Provide(fx.Private, split, watchersOf, redisStoresOf, newRoutes),
	fx.Provide(
		newHealth,
		(*redisStores).rules,
		(*redisStores).pushers,
		(*redisStores).pushkeys,
		fx.Annotate(newFeed, fx.ParamTags("", "", "", "", ChangeListeners)),
		serviceOf,
		(*module.Service).Rules,
		(*module.Service).Pushers,
		(*module.Service).Host,
		(*module.Service).Sync,
		AsRouteGroup(func(r routes) *handlers.PushRules { return r.rules }),
		AsRouteGroup(func(r routes) *handlers.Pushers { return r.pushers }),
		AsRouteGroup(func(r routes) *handlers.AccountData { return r.accountData }),
		pushOf,
	),
	fx.Decorate(func(log *zap.Logger) *zap.Logger { return log.Named("push") }),
	fx.Invoke(run),
)

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

// AsObserver annotates a constructor of an [observe.Observer], so that it joins
// [Observers].
func AsObserver(constructor any) any {
	return fx.Annotate(constructor, fx.As(new(observe.Observer)), fx.ResultTags(Observers))
}

// configs are the parts of [Config] that the packages take.
type configs struct {
	rules    rulestore.Config
	pushers  pusherstore.Config
	changes  module.FeedConfig
	service  module.Options
	handlers handlers.Config
	start    startConfig
}

// startConfig is what [Push.Check] needs.
type startConfig struct {
	timeout          time.Duration
	operationTimeout time.Duration
	durability       rediscommit.Durability
	redis            redisclient.Config
}

// split validates c and takes it apart.
func split(c Config) (configs, error) {
	stores := rediscommit.Config{KeyPrefix: c.KeyPrefix, OperationTimeout: c.OperationTimeout, Durability: c.Durability}
	defaults, err := pushrule.NewDefaults(c.DefaultRules...)
	parts := configs{
		rules:   rulestore.Config{Redis: stores, LargeEventBytes: c.LargeEventBytes},
		pushers: pusherstore.Config{Redis: stores},
		changes: c.Changes,
		service: module.Options{Defaults: defaults, Limits: c.RuleLimits, Policy: c.PusherPolicy},
		handlers: handlers.Config{
			MaxBodyBytes: c.MaxBodyBytes, MaxJSONDepth: c.MaxJSONDepth, OperationTimeout: c.OperationTimeout,
		},
		start: startConfig{c.StartTimeout, c.OperationTimeout, c.Durability, redisclient.Config{AllowEviction: c.AllowEviction}},
	}
	faults := []error{err, c.RuleLimits.Validate(), c.PusherPolicy.Validate(), c.Changes.Validate(), parts.rules.Validate(), parts.handlers.Validate()}
	if c.StartTimeout <= 0 {
		faults = append(faults, fmt.Errorf("StartTimeout is %v, want above 0", c.StartTimeout))
	}
	if err := errors.Join(faults...); err != nil {
		return configs{}, fmt.Errorf("pushfx: invalid config: %w", err)
	}
	return parts, nil
}

// redisStores builds the module's stores on the host's Redis client.
type redisStores struct {
	client redis.UniversalClient // nil if the host has none
	clock  *redisclient.Clock
	cfg    configs
	seen   *watchers
	inUse  bool // the host has not replaced all of them
}

func newRedisStores(client redis.UniversalClient, cfg configs, log *zap.Logger, seen *watchers) *redisStores {
	return &redisStores{client: client, clock: newClock(client, log), cfg: cfg, seen: seen}
}

// newClock returns the clock of Redis, which writes a log line if the host's own
// differs from it.
func newClock(client redis.UniversalClient, log *zap.Logger) *redisclient.Clock {
	return redisclient.NewClock(client, nil, func(err error) {
		if differs := (*redisclient.ClockError)(nil); errors.As(err, &differs) {
			log.Warn("the clocks of this host and of Redis differ", zap.String("error", fault.Details(err)))
			return
		}
		log.Warn("the clock of Redis cannot be read", zap.String("error", fault.Details(err)))
	})
}

// use returns the client for a store. A host without one gets an error from [Push.complete].
func (r *redisStores) use() redis.UniversalClient {
	r.inUse = true
	if r.client == nil {
		return redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, errNoClient }})
	}
	return r.client
}

var errNoClient = errors.New("pushfx: there is no Redis client: provide a redis.UniversalClient, *redis.Client or *redis.ClusterClient")

func (r *redisStores) rules() (module.RuleStore, error) {
	cfg := r.cfg.rules
	cfg.Redis.Observer, cfg.Redis.Now = r.seen, r.clock.Now
	return rulestore.New(r.use(), cfg)
}

func (r *redisStores) pushers() (module.PusherStore, error) {
	cfg := r.cfg.pushers
	cfg.Redis.Observer, cfg.Redis.Now = r.seen, r.clock.Now
	return pusherstore.New(r.use(), cfg)
}

func (r *redisStores) pushkeys() (module.PushkeyIndex, error) {
	cfg := r.cfg.pushers
	cfg.Redis.Observer, cfg.Redis.Now = r.seen, r.clock.Now
	return pusherstore.NewIndex(r.use(), cfg)
}

// fill adds the module's stores where the host has none of its own.
func (r *redisStores) fill(s *module.Stores) (err error) {
	if s.Rules == nil {
		s.Rules, err = r.rules()
	}
	if err == nil && s.Pushers == nil {
		s.Pushers, err = r.pushers()
	}
	if err == nil && s.Pushkeys == nil {
		s.Pushkeys, err = r.pushkeys()
	}
	if s.Now == nil {
		s.Now = r.clock.Now
	}
	return err
}

// newHealth returns the health of Redis, of which a host without one needs
// nothing.
func newHealth(r *redisStores) module.Health {
	if r.client == nil {
		return healthy{}
	}
	return redisclient.NewHealth(r.client, r.cfg.start.redis)
}

type healthy struct{}

func (healthy) Healthy(context.Context) error { return nil }

// watchers are all that are told what the module does.
type watchers struct {
	observe.Observer
	registerer prometheus.Registerer // nil if the host has none
	collectors []prometheus.Collector
}

func newWatchers(registerer prometheus.Registerer, tracers trace.TracerProvider, others ...observe.Observer) *watchers {
	w := &watchers{registerer: registerer}
	if registerer != nil {
		counts := metrics.New()
		w.collectors = append(w.collectors, counts)
		others = append(others, counts)
	}
	if tracers != nil {
		others = append(others, tracing.New(tracers))
	}
	w.Observer = observe.Join(others...)
	return w
}

// register registers the metrics, until [Push.Run] ends.
func (w *watchers) register(more ...prometheus.Collector) error {
	if w.registerer == nil {
		return nil
	}
	w.collectors = append(w.collectors, more...)
	for i, collector := range w.collectors {
		if err := w.registerer.Register(collector); err != nil {
			w.collectors = w.collectors[:i]
			w.unregister()
			return fmt.Errorf("pushfx: metrics: %w", err)
		}
	}
	return nil
}

func (w *watchers) unregister() {
	for _, collector := range w.collectors {
		w.registerer.Unregister(collector)
	}
}

// newFeed returns the feed of changes, which notifies the listeners.
func newFeed(
	store module.RuleStore, cfg configs, log *zap.Logger, seen *watchers, listeners ...module.ChangeListener,
) (*module.Feed, error) {
	c := cfg.changes
	c.Observer = seen
	if c.Report == nil {
		c.Report = func(err error) { reportFeed(log, err) }
	}
	return module.NewFeed(store, c, listeners...)
}

// reportFeed logs what goes wrong in the feed.
func reportFeed(log *zap.Logger, err error) {
	if panicked := (*module.ListenerPanic)(nil); errors.As(err, &panicked) {
		log.Error("change listener panicked", zap.Error(err))
		return
	}
	log.Warn("change feed disconnected from Redis, reconnecting", zap.String("error", fault.Details(err)))
}

func newService(stores module.Stores, feed *module.Feed, cfg configs, log *zap.Logger, seen *watchers) *module.Service {
	o := cfg.service
	o.Observer = seen
	o.SettleFailed = func(err error) { log.Warn("pushkeys are still to be settled", zap.String("error", fault.Details(err))) }
	return module.NewService(stores, feed, o)
}

// routes are the module's own route groups.
type routes struct {
	rules       *handlers.PushRules
	pushers     *handlers.Pushers
	accountData *handlers.AccountData
}

func newRoutes(
	rules module.RuleService, pushers module.PusherService, host module.HostService, cfg configs, log *zap.Logger, seen *watchers,
) (r routes, err error) {
	c := cfg.handlers
	c.Observer = seen
	var errs [3]error
	r.rules, errs[0] = handlers.NewPushRules(rules, c, log)
	r.pushers, errs[1] = handlers.NewPushers(pushers, c, log)
	r.accountData, errs[2] = handlers.NewAccountData(host, c, log)
	return r, errors.Join(errs[:]...)
}

func (r routes) all() []handlers.RouteGroup {
	return []handlers.RouteGroup{r.rules, r.pushers, r.accountData}
}

// The rest is fx: what the container has, for the functions above.

// hostClient is the host's Redis client, under whichever type it is provided.
type hostClient struct {
	fx.In

	Any     redis.UniversalClient `optional:"true"`
	Node    *redis.Client         `optional:"true"`
	Cluster *redis.ClusterClient  `optional:"true"`
}

func redisStoresOf(c hostClient, cfg configs, log *zap.Logger, seen *watchers) *redisStores {
	client := c.Any
	switch {
	case client != nil:
	case c.Cluster != nil:
		client = c.Cluster
	case c.Node != nil:
		client = c.Node
	}
	return newRedisStores(client, cfg, log, seen)
}

// hostTelemetry is where the host wants metrics and traces.
type hostTelemetry struct {
	fx.In

	Registerer prometheus.Registerer `optional:"true"`
	Registry   *prometheus.Registry  `optional:"true"`
	Tracers    trace.TracerProvider  `optional:"true"`
	Observers  []observe.Observer    `group:"push.observers"`
}

func watchersOf(t hostTelemetry) *watchers {
	if t.Registerer == nil && t.Registry != nil {
		t.Registerer = t.Registry
	}
	return newWatchers(t.Registerer, t.Tracers, t.Observers...)
}

// hostStores are the stores that the host has replaced or wrapped.
type hostStores struct {
	fx.In

	Rules    module.RuleStore
	Pushers  module.PusherStore
	Pushkeys module.PushkeyIndex
	Redis    *redisStores
	Accounts module.Accounts `optional:"true"`
}

func (s hostStores) all() module.Stores {
	return module.Stores{Rules: s.Rules, Pushers: s.Pushers, Pushkeys: s.Pushkeys, Now: s.Redis.clock.Now}
}

func serviceOf(s hostStores, feed *module.Feed, cfg configs, log *zap.Logger, seen *watchers) *module.Service {
	service := newService(s.all(), feed, cfg, log, seen)
	service.SetAccounts(s.Accounts)
	return service
}

// pushParts are what [Push] is made of.
type pushParts struct {
	fx.In

	Rules   module.RuleService
	Pushers module.PusherService
	Host    module.HostService
	Sync    module.SyncService
	Health  module.Health
	Stores  hostStores
	Routes  routes
	Service *module.Service
	Feed    *module.Feed
	Redis   *redisStores
	Seen    *watchers
	Log     *zap.Logger
}

func pushOf(p pushParts) *Push {
	return &Push{
		Rules: p.Rules, Pushers: p.Pushers, Host: p.Host, Sync: p.Sync, Health: p.Health, Groups: p.Routes.all(),
		Stores:  p.Stores.all(),
		service: p.Service, feed: p.Feed, redis: p.Redis, seen: p.Seen, log: p.Log,
	}
}

// run checks at the start of the app and runs until its stop, which waits for
// what runs to end.
func run(lc fx.Lifecycle, p *Push) error {
	if err := p.complete(); err != nil {
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
				return fmt.Errorf("pushfx: a change listener does not return: %w", stop.Err())
			}
		},
	})
	return nil
}
