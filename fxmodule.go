// Package pushfx is a plugin for Matrix homeservers that serves push rules and
// pushers: an fx module that gives the host echo route groups for the eleven
// endpoints, the domain service behind them, and stores on Redis.
//
// The host includes [Module], provides a redis.UniversalClient and a
// *zap.Logger, mounts the route groups (tagged [RouteGroups]) below its own
// authenticated echo groups, and tells who the user is with
// [handlers.WithRequester]. Every interface of package module can be replaced
// or wrapped with fx.Replace and fx.Decorate.
package pushfx

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
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

	// MaxEventBytes is the size in bytes to which a user's stored push rules
	// event may grow. Default 1 MiB.
	MaxEventBytes int

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

	// Changes is about telling listeners and syncs of changes. Without a Report,
	// what goes wrong there is logged.
	Changes module.ChangesConfig
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
		MaxEventBytes:    rules.MaxEventBytes,
		LargeEventBytes:  rules.LargeEventBytes,
		RuleLimits:       pushrule.DefaultLimits(),
		PusherPolicy:     pusher.DefaultPolicy(),
		Changes:          module.DefaultChangesConfig(),
	}
}

// Validate joins an error for each field that is not as its comment says.
func (c Config) Validate() error {
	_, err := split(c)
	return err
}

// Module provides the route groups and all that is behind them. It needs a
// redis.UniversalClient and a *zap.Logger, which stay the host's. It takes, where
// there is one, a [module.Accounts], a prometheus.Registerer, with which its
// metrics are registered until it stops, and an OpenTelemetry
// trace.TracerProvider. At start it checks that Redis answers; until it stops it
// tells listeners of changes and settles pushkeys.
var Module = fx.Module("push",
	fx.Provide(DefaultConfig),
	fx.Provide(fx.Private, split, fx.Annotate(newStoreClient, fx.ParamTags("", "", "", "", optional)), fx.Annotate(newOptions, fx.ParamTags("", "", "", "", optional)),
		fx.Annotate(newObserver, fx.ParamTags("", optional, optional, Observers))),
	fx.Provide(
		fx.Annotate(newHealth, fx.As(new(module.Health))),
		fx.Annotate(newRuleStore, fx.As(new(module.RuleStore))),
		fx.Annotate(newPusherStore, fx.As(new(module.PusherStore))),
		fx.Annotate(newPushkeyIndex, fx.As(new(module.PushkeyIndex))),
		fx.Annotate(newChanges, fx.ParamTags("", "", "", "", "", optional, ChangeListeners)),
		module.NewRuleService,
		newPusherService,
		module.NewHostService,
		module.NewSyncService,
		AsRouteGroup(newPushRules),
		AsRouteGroup(newPushers),
	),
	fx.Decorate(func(log *zap.Logger) *zap.Logger { return log.Named("push") }),
)

// optional is the fx tag of what the host need not provide.
const optional = `optional:"true"`

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
	fx.Out

	RuleLimits   pushrule.Limits
	PusherPolicy pusher.Policy
	Defaults     pushrule.Defaults
	Changes      module.ChangesConfig
	RuleStore    rulestore.Config
	PusherStore  pusherstore.Config
	Handlers     handlers.Config
	Start        startConfig
}

// startConfig is what the check at start needs.
type startConfig struct {
	Timeout          time.Duration
	OperationTimeout time.Duration
	Durability       rediscommit.Durability
	Redis            redisclient.Config
}

// split validates c and takes it apart.
func split(c Config) (configs, error) {
	stores := rediscommit.Config{KeyPrefix: c.KeyPrefix, OperationTimeout: c.OperationTimeout, Durability: c.Durability}
	defaults, err := pushrule.NewDefaults(c.DefaultRules...)
	parts := configs{
		RuleLimits:   c.RuleLimits,
		PusherPolicy: c.PusherPolicy,
		Defaults:     defaults,
		Changes:      c.Changes,
		RuleStore:    rulestore.Config{Redis: stores, MaxEventBytes: c.MaxEventBytes, LargeEventBytes: c.LargeEventBytes},
		PusherStore:  pusherstore.Config{Redis: stores},
		Handlers: handlers.Config{
			MaxBodyBytes: c.MaxBodyBytes, MaxJSONDepth: c.MaxJSONDepth, OperationTimeout: c.OperationTimeout,
		},
		Start: startConfig{c.StartTimeout, c.OperationTimeout, c.Durability, redisclient.Config{AllowEviction: c.AllowEviction}},
	}
	faults := []error{err, c.RuleLimits.Validate(), c.PusherPolicy.Validate(), c.Changes.Validate(), parts.RuleStore.Validate(), parts.Handlers.Validate()}
	if c.StartTimeout <= 0 {
		faults = append(faults, fmt.Errorf("StartTimeout is %v, want above 0", c.StartTimeout))
	}
	if err := errors.Join(faults...); err != nil {
		return configs{}, fmt.Errorf("pushfx: invalid config: %w", err)
	}
	return parts, nil
}

// storeClient is the host's client, checked at start: the stores take it, so
// that a host that replaces both of them needs no Redis.
type storeClient struct{ redis.UniversalClient }

func newStoreClient(
	lc fx.Lifecycle, client redis.UniversalClient, cfg startConfig, log *zap.Logger, registerer prometheus.Registerer,
) (storeClient, error) {
	evictions := redisclient.NewEvictions(client, cfg.Redis, func(err error) { log.Warn("Redis may evict keys", zap.Error(err)) })
	lc.Append(fx.StartHook(func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
		defer cancel()
		for _, advice := range redisclient.Advise(client, cfg.OperationTimeout) {
			log.Warn("a setting of the Redis client will hurt", zap.String("option", advice.Option),
				zap.String("why", advice.String()), zap.String("redis", addressOf(client)))
		}
		if err := checkAnswers(ctx, client); err != nil {
			return err
		}
		if err := evictions.Check(ctx); err != nil {
			return fmt.Errorf("pushfx: %w", err)
		}
		shortages, err := cfg.Durability.Check(ctx, client)
		for _, shortage := range shortages {
			log.Warn("no change will be acknowledged", zap.String("why", shortage))
		}
		if err != nil {
			return fmt.Errorf("pushfx: %w", err)
		}
		return nil
	}))
	lc.Append(whileRunning(evictions.Run))
	if registerer == nil {
		return storeClient{client}, nil
	}
	return storeClient{client}, registerWhileRunning(lc, registerer, metrics.NewEvicting(evictions.Masters))
}

// checkAnswers returns when Redis has answered or ctx has ended, even where
// the client ignores ctx; the client's own timeouts end the ping then.
func checkAnswers(ctx context.Context, client redis.UniversalClient) error {
	answer := make(chan error, 1)
	go func() { answer <- client.Ping(ctx).Err() }()
	var err error
	select {
	case err = <-answer:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("pushfx: Redis at %s does not answer: %w", addressOf(client), err)
	}
	return nil
}

// addressOf returns where a client connects to.
func addressOf(client redis.UniversalClient) string {
	switch c := client.(type) {
	case *redis.Client:
		if address := c.Options().Addr; address != "FailoverClient" {
			return address
		}
		// What go-redis writes for sentinels, whose addresses it does not tell.
		return "the address that the sentinels tell"
	case *redis.ClusterClient:
		return strings.Join(c.Options().Addrs, ",")
	}
	return fmt.Sprintf("%T", client)
}

// observer is all that is told what the module does.
type observer struct{ observe.Observer }

// newObserver joins the host's observers with the module's own.
func newObserver(
	lc fx.Lifecycle, registerer prometheus.Registerer, tracers trace.TracerProvider, others ...observe.Observer,
) (observer, error) {
	if registerer != nil {
		counts := metrics.New()
		if err := registerWhileRunning(lc, registerer, counts); err != nil {
			return observer{}, err
		}
		others = append(others, counts)
	}
	if tracers != nil {
		others = append(others, tracing.New(tracers))
	}
	return observer{observe.Join(others...)}, nil
}

// registerWhileRunning registers a collector until the app stops.
func registerWhileRunning(lc fx.Lifecycle, registerer prometheus.Registerer, collector prometheus.Collector) error {
	if err := registerer.Register(collector); err != nil {
		return fmt.Errorf("pushfx: metrics: %w", err)
	}
	lc.Append(fx.StopHook(func() { registerer.Unregister(collector) }))
	return nil
}

func newHealth(client storeClient, cfg startConfig) *redisclient.Health {
	return redisclient.NewHealth(client.UniversalClient, cfg.Redis)
}

func newRuleStore(client storeClient, cfg rulestore.Config, o observer) (*rulestore.Store, error) {
	cfg.Redis.Observer = o
	return rulestore.New(client.UniversalClient, cfg)
}

func newPusherStore(client storeClient, cfg pusherstore.Config, o observer) (*pusherstore.Store, error) {
	cfg.Redis.Observer = o
	return pusherstore.New(client.UniversalClient, cfg)
}

func newPushkeyIndex(client storeClient, cfg pusherstore.Config, o observer) (*pusherstore.Index, error) {
	cfg.Redis.Observer = o
	return pusherstore.NewIndex(client.UniversalClient, cfg)
}

func newPushRules(rules module.RuleService, cfg handlers.Config, log *zap.Logger, o observer) (*handlers.PushRules, error) {
	cfg.Observer = o
	return handlers.NewPushRules(rules, cfg, log)
}

func newPushers(pushers module.PusherService, cfg handlers.Config, log *zap.Logger, o observer) (*handlers.Pushers, error) {
	cfg.Observer = o
	return handlers.NewPushers(pushers, cfg, log)
}

func newOptions(
	limits pushrule.Limits, defaults pushrule.Defaults, policy pusher.Policy, o observer, accounts module.Accounts,
) (module.RuleOptions, module.PusherOptions) {
	return module.RuleOptions{Defaults: defaults, Limits: limits, Accounts: accounts, Observer: o},
		module.PusherOptions{Policy: policy, Accounts: accounts}
}

// newChanges returns what tells the listeners, running while the host does.
func newChanges(
	lc fx.Lifecycle, store module.RuleStore, cfg module.ChangesConfig, log *zap.Logger, o observer,
	registerer prometheus.Registerer, listeners ...module.ChangeListener,
) (*module.Changes, error) {
	cfg.Observer = o
	if cfg.Report == nil {
		cfg.Report = func(err error) { log.Warn("trouble with telling changes", zap.Error(err)) }
	}
	changes, err := module.NewChanges(store, cfg, listeners...)
	if err != nil {
		return nil, err
	}
	lc.Append(whileRunning(changes.Run))
	if registerer != nil {
		err = registerWhileRunning(lc, registerer, metrics.NewChanges(changes.Stats))
	}
	return changes, err
}

// newPusherService returns the service, and settles pushkeys while the host
// runs: what a host that died has left undone, another finishes.
func newPusherService(
	lc fx.Lifecycle, store module.PusherStore, index module.PushkeyIndex, o module.PusherOptions, log *zap.Logger,
) module.PusherService {
	lc.Append(whileRunning(func(ctx context.Context) {
		for wait(ctx, settleInterval/2+rand.N(settleInterval)) {
			if err := module.SettlePushkeys(ctx, store, index); err != nil && ctx.Err() == nil {
				log.Warn("pushkeys are still to be settled", zap.Error(err))
			}
		}
	}))
	return module.NewPusherService(store, index, o)
}

// settleInterval is how often hosts look for pushkeys to settle, about.
const settleInterval = 30 * time.Second

// wait returns after d, or with false when ctx ends.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// whileRunning runs a task from the start of the app to its stop, which waits
// for the task to end.
func whileRunning(task func(context.Context)) fx.Hook {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	return fx.Hook{
		OnStart: func(context.Context) error {
			go func() {
				defer close(ended)
				task(ctx)
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
	}
}
