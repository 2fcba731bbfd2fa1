package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/redisurl"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/pusherstore"
	"github.com/pushfx/pushfx/rulestore"
)

// backend is a Redis with the module's stores and its service for hosts.
type backend struct {
	servers  redisurl.Servers
	client   redis.UniversalClient
	defaults defaultTable

	rules   *rulestore.Store
	pushers *pusherstore.Store
	index   *pusherstore.Index
	host    module.HostService
	events  *rulestore.Reader
	keys    stored.Keys
}

// patience is how long a busy server may take to answer: nobody waits for this
// command as clients wait for a host.
const patience = 2 * time.Second

// replyLimit bounds each command, and each pipeline of them.
const replyLimit = 10 * time.Second

// connect connects to the Redis and checks that it is what the flags say.
func (o options) connect(ctx context.Context, environment func(string) string) (*backend, error) {
	servers, err := o.findServers(environment)
	if err != nil {
		return nil, err
	}
	cfg := pushfx.DefaultConfig()
	cfg.KeyPrefix = o.keyPrefix
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("-key-prefix: %w", err)
	}
	if cfg.Durability, err = rediscommit.ParseDurability(cmp.Or(o.durability, "none")); err != nil {
		return nil, fmt.Errorf("-durability: %w", err)
	}
	servers.LongestWait = max(patience, cfg.Durability.LongestWait())
	b := &backend{servers: servers, events: rulestore.NewReader()}
	defaults, err := readDefaultRules(o.defaultRules)
	if err != nil {
		return nil, fmt.Errorf("-default-rules: %w", err)
	}
	b.defaults = newDefaultTable(defaults)
	if err := servers.Check(ctx); err != nil {
		return nil, err
	}
	b.client = servers.Client()
	if err := b.build(cfg); err != nil {
		return nil, errors.Join(err, b.client.Close())
	}
	return b, nil
}

// build makes the stores and services.
func (b *backend) build(cfg pushfx.Config) error {
	stores := rediscommit.Config{KeyPrefix: cfg.KeyPrefix, OperationTimeout: cfg.OperationTimeout, Durability: cfg.Durability}
	b.keys = stored.Keys{Prefix: cfg.KeyPrefix}
	var rulesErr, pushersErr, indexErr error
	b.rules, rulesErr = rulestore.New(b.client, rulestore.Config{
		Redis: stores, MaxEventBytes: cfg.MaxEventBytes, LargeEventBytes: cfg.LargeEventBytes,
	})
	b.pushers, pushersErr = pusherstore.New(b.client, pusherstore.Config{Redis: stores})
	b.index, indexErr = pusherstore.NewIndex(b.client, pusherstore.Config{Redis: stores})
	if err := errors.Join(rulesErr, pushersErr, indexErr); err != nil {
		return err
	}
	feed, err := module.NewFeed(b.rules, cfg.Changes)
	if err != nil {
		return err
	}
	service := module.NewService(module.Stores{Rules: b.rules, Pushers: b.pushers, Pushkeys: b.index}, feed,
		module.Options{Defaults: b.defaults.Defaults, Limits: cfg.RuleLimits, Policy: cfg.PusherPolicy})
	b.host = service.Host(service.Rules())
	return nil
}

// userArgument is the user that a command is about.
func (c *call) userArgument() (mxid.UserID, error) {
	user := mxid.UserID(c.args[0])
	if err := user.Validate(); err != nil {
		return "", fmt.Errorf("%q: %w, want @NAME:SERVER", c.args[0], err)
	}
	return user, nil
}
