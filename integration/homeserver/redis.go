package main

import (
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/fx"
)

// The settings of the Redis client. The module gives each operation 5 s in
// all, which must leave time for a second try.
const (
	replyTimeout = time.Second            // to write a command, and to read its answer
	dialReserve  = 200 * time.Millisecond // a dial may take longer than a reply, or a silent sentinel is kept
	dialTries    = 2

	// poolLimit is how long a request waits for a connection to a server all of
	// whose connections wait for replies, before it turns to another.
	poolLimit = 500 * time.Millisecond

	// topologyAge is how long a failover can stay unnoticed. The client's
	// default is a minute.
	topologyAge = time.Second
)

// newRedis returns the client that the module needs, with a check at start
// that the mode fits the servers.
func newRedis(lc fx.Lifecycle, cfg config) redis.UniversalClient {
	client := cfg.redis.client()
	lc.Append(fx.StopHook(client.Close))
	lc.Append(fx.StartHook(cfg.redis.check))
	return client
}

// client returns a client for the mode, whatever the number of addresses.
func (s redisServers) client() redis.UniversalClient {
	switch s.mode {
	case sentinel:
		return redis.NewFailoverClient(s.failoverOptions())
	case cluster:
		return redis.NewClusterClient(s.clusterOptions())
	default:
		return redis.NewClient(s.nodeOptions(s.addresses[0]))
	}
}

// replyLimit is longer than the server may take to keep a change.
func (s redisServers) replyLimit() time.Duration {
	return max(replyTimeout, s.longestWait+dialReserve)
}

func (s redisServers) dialLimit() time.Duration { return s.replyLimit() + dialReserve }

// nodeOptions are those of a single server.
func (s redisServers) nodeOptions(address string) *redis.Options {
	return &redis.Options{
		Addr:                     address,
		Username:                 s.login.user,
		Password:                 s.login.password,
		DB:                       s.database,
		TLSConfig:                s.tls,
		DialTimeout:              s.dialLimit(),
		DialerRetries:            dialTries,
		ReadTimeout:              s.replyLimit(),
		WriteTimeout:             s.replyLimit(),
		ContextTimeoutEnabled:    true,
		MaintNotificationsConfig: noMaintenance(),
	}
}

func (s redisServers) failoverOptions() *redis.FailoverOptions {
	return &redis.FailoverOptions{
		MasterName:            s.master,
		SentinelAddrs:         s.addresses,
		SentinelUsername:      s.sentinels.user,
		SentinelPassword:      s.sentinels.password,
		Username:              s.login.user,
		Password:              s.login.password,
		DB:                    s.database,
		TLSConfig:             s.tls,
		DialTimeout:           s.dialLimit(),
		DialerRetries:         dialTries,
		ReadTimeout:           s.replyLimit(),
		WriteTimeout:          s.replyLimit(),
		ContextTimeoutEnabled: true,
	}
}

func (s redisServers) clusterOptions() *redis.ClusterOptions {
	return &redis.ClusterOptions{
		Addrs:                      s.addresses,
		Username:                   s.login.user,
		Password:                   s.login.password,
		TLSConfig:                  s.tls,
		DialTimeout:                s.dialLimit(),
		DialerRetries:              dialTries,
		ReadTimeout:                s.replyLimit(),
		WriteTimeout:               s.replyLimit(),
		PoolTimeout:                poolLimit,
		ContextTimeoutEnabled:      true,
		ClusterStateReloadInterval: topologyAge,
		MaintNotificationsConfig:   noMaintenance(),
	}
}

// noMaintenance turns off the announcements of planned maintenance, which most
// servers do not know and refuse.
func noMaintenance() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}
