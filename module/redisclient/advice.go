package redisclient

import (
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Advice is about a client setting that harms the module.
type Advice struct {
	Option string // the setting's name in go-redis, or "Ring" for that client type
	Fault  string // the effect, worded to follow "the Redis client"
	Remedy string // the change to make, with a good value
}

// String returns one log line.
func (a Advice) String() string {
	return "the Redis client " + a.Fault + ": " + a.Remedy
}

// These limits leave time for a second try within 5 s, the default OperationTimeout.
const (
	maxTry         = 2500 * time.Millisecond
	maxDials       = 2
	maxTopologyAge = time.Second
)

// Advise returns advice on each setting or default of a client that harms the module,
// without addresses or passwords. Clients of unknown types get none.
func Advise(client redis.UniversalClient) []Advice {
	switch c := client.(type) {
	case *redis.Client:
		return adviseNode(c.Options())
	case *redis.ClusterClient:
		return adviseCluster(c.Options())
	case *redis.Ring: // sends the keys of a failed shard to the other shards
		return []Advice{{"Ring", "takes users to a server without their data when theirs is down", "use NewClusterClient"}}
	}
	return nil
}

// sentinelAddr is the address in the options of go-redis's NewFailoverClient.
const sentinelAddr = "FailoverClient"

// adviseNode limits dials only for a sentinel client: a client of a single server has
// no other server to turn to.
func adviseNode(o *redis.Options) []Advice {
	found := adviseLimits(o)
	if o.Addr == sentinelAddr {
		found.addDials(o.DialerRetries)
	}
	found.addIf(o.MaxRetries < 1, "MaxRetries", "does not try again when a reply is lost or a connection broke", "set MaxRetries to 3")
	found.addIf(o.ClientSideCache != nil || o.ClientSideCacheConfig != nil, "ClientSideCache",
		"answers reads from its own memory, which lags behind", "leave ClientSideCache and ClientSideCacheConfig unset")
	return found
}

// adviseCluster does not check MaxRetries, because MaxRedirects bounds the retries of a
// cluster client.
func adviseCluster(o *redis.ClusterOptions) []Advice {
	found := adviseLimits(&redis.Options{
		ContextTimeoutEnabled: o.ContextTimeoutEnabled,
		ReadTimeout:           o.ReadTimeout, WriteTimeout: o.WriteTimeout, DialTimeout: o.DialTimeout,
	})
	found.addDials(o.DialerRetries)
	found.addIf(o.MaxRedirects < 1, "MaxRedirects", "neither follows a slot to another node nor tries again", "set MaxRedirects to 3")
	found.addIf(o.ClusterStateReloadInterval > maxTopologyAge, "ClusterStateReloadInterval",
		fmt.Sprintf("may notice a failover %v late", o.ClusterStateReloadInterval),
		fmt.Sprintf("set ClusterStateReloadInterval to %v; with sentinels, use NewFailoverClient", maxTopologyAge))
	found.addIf(o.ReadOnly || o.RouteByLatency || o.RouteRandomly, "ReadOnly",
		"reads from replicas, which lag behind", "set ReadOnly, ReplicaOnly, RouteByLatency and RouteRandomly to false")
	return found
}

type advices []Advice

func (a *advices) addIf(hurts bool, option, fault, remedy string) {
	if hurts {
		*a = append(*a, Advice{option, fault, remedy})
	}
}

// adviseLimits gets options in which go-redis has set the defaults: zero or less means
// no limit, and an unset WriteTimeout equals ReadTimeout.
func adviseLimits(o *redis.Options) (found advices) {
	found.addIf(!o.ContextTimeoutEnabled, "ContextTimeoutEnabled", "ignores deadlines", "set ContextTimeoutEnabled to true")
	addLimit := func(option string, limit time.Duration, what, remedy string) {
		duration := "up to " + limit.String()
		if limit <= 0 {
			duration = "without a limit"
		}
		found.addIf(limit <= 0 || limit > maxTry, option,
			fmt.Sprintf("waits %s for %s, which leaves no time for a second try", duration, what), "set "+option+" to "+remedy)
	}
	addLimit("ReadTimeout", o.ReadTimeout, "a reply", "1s")
	if o.WriteTimeout != o.ReadTimeout {
		addLimit("WriteTimeout", o.WriteTimeout, "a command to be sent", "1s")
	}
	addLimit("DialTimeout", o.DialTimeout, "a connection", "1.2s")
	return found
}

// addDials advises clients with several servers against many dials. Zero or less means
// the default of go-redis.
func (a *advices) addDials(dials int) {
	if dials <= 0 {
		dials = 5
	}
	a.addIf(dials > maxDials, "DialerRetries", fmt.Sprintf("dials a dead server %d times before it turns to another", dials),
		fmt.Sprintf("set DialerRetries to %d", maxDials))
}
