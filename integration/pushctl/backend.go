package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/redisurl"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/service"
	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/pusherstore"
	"github.com/pushfx/pushfx/rulestore"
)

type backend struct {
	servers  redisurl.Servers
	client   redis.UniversalClient
	keys     stored.Keys
	defaults pushrule.Defaults

	host    module.HostService
	repairs *service.Repairs
	now     func() time.Time // the clock of Redis
	rules   *rulestore.Store
	pushers *pusherstore.Store
	index   *pusherstore.Index
	queue   *redisqueue.Queue

	gaps *gaps // nil if the command needs all data

	pipelines *redisclient.Pipelines
	mu        sync.Mutex
	created   map[string]*redis.Client // of masters without slots, by address
}

// close closes all clients.
func (b *backend) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for _, node := range b.created {
		errs = append(errs, node.Close())
	}
	return errors.Join(append(errs, b.client.Close())...)
}

// eachMaster calls do concurrently for each master, also without slots, and returns the errors.
func (b *backend) eachMaster(ctx context.Context, do func(context.Context, *redis.Client) error) error {
	b.mu.Lock()
	masters, err := redisclient.ListedMasters(ctx, b.client, b.created)
	b.mu.Unlock()
	if err != nil {
		return err
	}
	errs := make([]error, len(masters))
	var asking sync.WaitGroup
	for i, master := range masters {
		asking.Go(func() { errs[i] = do(ctx, master) })
	}
	asking.Wait()
	return cmp.Or(errs...)
}

const (
	// minReadTimeout is longer than the timeout of hosts, since no client waits for pushctl.
	minReadTimeout = 2 * time.Second

	// replyTimeout is the longest wait for a command or pipeline.
	replyTimeout = 10 * time.Second
)

// connect connects to the Redis and checks that it has the mode of the flags.
func (f *flags) connect(ctx context.Context, environment func(string) string) (*backend, error) {
	servers, err := f.findServers(environment)
	if err != nil {
		return nil, err
	}
	cfg := pushfx.DefaultConfig()
	cfg.Redis.KeyPrefix = f.keyPrefix
	if err := cfg.Redis.Validate(); err != nil {
		return nil, fmt.Errorf("-key-prefix: %w", err)
	}
	if cfg.Redis.Durability, err = rediscommit.ParseDurability(f.durability); err != nil {
		return nil, fmt.Errorf("-durability: %w", err)
	}
	if cfg.Features, err = pushrule.ParseFeatures(f.features); err != nil {
		return nil, fmt.Errorf("-features: %w", err)
	}
	if cfg.DefaultRules, err = readDefaultRules(f.defaultRules, cfg.Features); err != nil {
		return nil, fmt.Errorf("-default-rules: %w", err)
	}
	servers.MaxWait = max(minReadTimeout, cfg.Redis.Durability.MaxWait())
	if err := servers.Check(ctx); err != nil {
		return nil, err
	}
	b := &backend{servers: servers, client: servers.Client(), keys: stored.Keys{Prefix: f.keyPrefix}, created: map[string]*redis.Client{}}
	b.pipelines = redisclient.NewPipelines(b.client, nil)
	if err := b.build(ctx, cfg); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *backend) build(ctx context.Context, cfg pushfx.Config) error {
	push, err := pushfx.New(b.client, cfg, pushfx.Options{Unread: &pushfx.UnreadOptions{}}) // for forget
	if err != nil {
		return err
	}
	push.Clock.Measure(ctx)
	b.now = push.Clock.Now
	if b.defaults, err = pushrule.NewDefaults(cfg.Features, cfg.DefaultRules...); err != nil {
		return err
	}
	b.host, b.repairs = push.Host, service.NewRepairs(push.Stores)
	b.rules, _ = push.Stores.Rules.(*rulestore.Store)
	b.pushers, _ = push.Stores.Pushers.(*pusherstore.Store)
	b.index, _ = push.Stores.Pushkeys.(*pusherstore.Index)
	b.queue, err = redisqueue.New(b.client, cfg.Redis, rediscommit.Options{})
	return err
}

// visiblePushers returns a user's pushers without those that another user has taken.
func (b *backend) visiblePushers(ctx context.Context, user mxid.UserID) (pusher.List, error) {
	result := b.host.Pushers(ctx, []mxid.UserID{user})[user]
	return result.Value, result.Err
}

// addressOf returns a node's address, or the master's name behind sentinels.
func (b *backend) addressOf(node *redis.Client) string {
	if b.servers.Mode == redisurl.Sentinel {
		return "master " + b.servers.Master()
	}
	return node.Options().Addr
}

// nodeOf returns the master of a key's slot.
func (b *backend) nodeOf(ctx context.Context, key string) (*redis.Client, error) {
	switch client := b.client.(type) {
	case *redis.Client:
		return client, nil
	case *redis.ClusterClient:
		return client.MasterForKey(ctx, key)
	}
	return nil, fmt.Errorf("a %T has no masters", b.client)
}
