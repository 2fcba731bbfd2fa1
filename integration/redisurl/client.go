package redisurl

import (
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
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

// Client returns a client for the mode, whatever the number of addresses.
func (s Servers) Client() redis.UniversalClient {
	switch s.Mode {
	case Sentinel:
		return redis.NewFailoverClient(s.failoverOptions())
	case Cluster:
		return redis.NewClusterClient(s.clusterOptions())
	default:
		return redis.NewClient(s.nodeOptions(s.Addresses[0]))
	}
}

// replyLimit is longer than the server may take to keep a change.
func (s Servers) replyLimit() time.Duration {
	return max(replyTimeout, s.LongestWait+dialReserve)
}

func (s Servers) dialLimit() time.Duration { return s.replyLimit() + dialReserve }

// nodeOptions are those of a single server.
func (s Servers) nodeOptions(address string) *redis.Options {
	return &redis.Options{
		Addr:                     address,
		Username:                 s.Login.User,
		Password:                 s.Login.Password,
		DB:                       s.Database,
		TLSConfig:                s.TLS,
		DialTimeout:              s.dialLimit(),
		DialerRetries:            dialTries,
		ReadTimeout:              s.replyLimit(),
		WriteTimeout:             s.replyLimit(),
		ContextTimeoutEnabled:    true,
		MaintNotificationsConfig: noMaintenance(),
	}
}

func (s Servers) failoverOptions() *redis.FailoverOptions {
	return &redis.FailoverOptions{
		MasterName:            s.Master,
		SentinelAddrs:         s.Addresses,
		SentinelUsername:      s.Sentinels.User,
		SentinelPassword:      s.Sentinels.Password,
		Username:              s.Login.User,
		Password:              s.Login.Password,
		DB:                    s.Database,
		TLSConfig:             s.TLS,
		DialTimeout:           s.dialLimit(),
		DialerRetries:         dialTries,
		ReadTimeout:           s.replyLimit(),
		WriteTimeout:          s.replyLimit(),
		ContextTimeoutEnabled: true,
	}
}

func (s Servers) clusterOptions() *redis.ClusterOptions {
	return &redis.ClusterOptions{
		Addrs:                      s.Addresses,
		Username:                   s.Login.User,
		Password:                   s.Login.Password,
		TLSConfig:                  s.TLS,
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
