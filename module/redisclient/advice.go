package redisclient

import (
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Advice is about a setting of a client that will hurt.
type Advice struct {
	Option string // the setting's name in go-redis; "Ring" is that of a whole client
	Fault  string // what the client does because of it, after "the Redis client"
	Remedy string // what to do, with a value that does not hurt
}

// String is a line for a log.
func (a Advice) String() string {
	return "the Redis client " + a.Fault + ": " + a.Remedy
}

// Advise returns what in the client's settings will hurt a store whose
// operations may take operationTimeout, which is above zero. The order is
// always the same, and neither addresses nor passwords are in it. Defaults
// count like settings.
//
// A client of an unknown type is taken for good. So is what a client does not
// tell: NewFailoverClient hides ReplicaOnly.
func Advise(client redis.UniversalClient, operationTimeout time.Duration) []Advice {
	switch c := client.(type) {
	case *redis.Client:
		return adviseNode(c.Options(), operationTimeout)
	case *redis.ClusterClient:
		return adviseCluster(c.Options(), operationTimeout)
	case *redis.Ring:
		return []Advice{ringAdvice}
	}
	return nil
}

// ringAdvice: a Ring that misses three heartbeats of a shard, 1.5 s by default,
// takes the keys of that shard to the others, which do not have them. Other
// hosts may see it otherwise at the same time.
var ringAdvice = Advice{
	"Ring", "takes users to a server without their data when theirs is down", "use NewClusterClient",
}

// advices grows by what hurts.
type advices []Advice

func (a *advices) addIf(hurts bool, option, fault, remedy string) {
	if hurts {
		*a = append(*a, Advice{option, fault, remedy})
	}
}

// sentinelAddr is what go-redis writes in place of an address into the options
// of NewFailoverClient, which do not tell those of the sentinels.
const sentinelAddr = "FailoverClient"

// adviseNode is for NewClient and NewFailoverClient.
func adviseNode(o *redis.Options, operation time.Duration) []Advice {
	var found advices
	p := patienceOf(operation)
	found.addOfTimes(o, p)
	if o.Addr == sentinelAddr {
		found.addOfDials(o, p)
		found.addOfSentinels(o, p)
	}
	found.addIf(o.MaxRetries < 1, "MaxRetries",
		"does not try again when a reply is lost or a connection broke", "set MaxRetries to 3")
	found.addIf(cachesReads(o), cacheOption(o),
		"answers reads from its own memory, which lags behind", "leave ClientSideCache and ClientSideCacheConfig unset")
	return found
}

// adviseCluster is for NewClusterClient and NewFailoverClusterClient. It leaves
// MaxRetries alone, which is off by default: MaxRedirects counts those retries.
func adviseCluster(o *redis.ClusterOptions, operation time.Duration) []Advice {
	var found advices
	p := patienceOf(operation).inCluster()
	ofNodes := nodeOptions(o)
	found.addOfTimes(ofNodes, p)
	found.addOfDials(ofNodes, p)
	found.addIf(o.MaxRedirects < 1, "MaxRedirects",
		"neither follows a slot to another node nor tries again", "set MaxRedirects to 3")
	found.addOfTopology(o)
	found.addOfReplicas(o)
	return found
}

// nodeOptions are those that a cluster client hands to the clients of its nodes.
func nodeOptions(o *redis.ClusterOptions) *redis.Options {
	return &redis.Options{
		ContextTimeoutEnabled: o.ContextTimeoutEnabled,
		ReadTimeout:           o.ReadTimeout,
		WriteTimeout:          o.WriteTimeout,
		DialTimeout:           o.DialTimeout,
		DialerRetries:         o.DialerRetries,
		DialerRetryTimeout:    o.DialerRetryTimeout,
		DialerRetryBackoff:    o.DialerRetryBackoff,
		MinRetryBackoff:       o.MinRetryBackoff,
		MaxRetryBackoff:       o.MaxRetryBackoff,
	}
}

// addOfTimes is about what one request may wait for.
//
// After the defaults of go-redis, a ReadTimeout or WriteTimeout of zero is one
// that was turned off with -1, and a negative one was turned off with -2, which
// keeps deadlines from the connection too, ContextTimeoutEnabled or not. An
// unset WriteTimeout follows ReadTimeout.
func (a *advices) addOfTimes(o *redis.Options, p patience) {
	a.addIf(!o.ContextTimeoutEnabled, "ContextTimeoutEnabled",
		"ignores deadlines", "set ContextTimeoutEnabled to true")
	a.addIf(p.tooLong(o.ReadTimeout), "ReadTimeout",
		p.fault(o.ReadTimeout, "a reply"), setTo("ReadTimeout", p.forReply()))
	a.addIf(p.tooLong(o.WriteTimeout) && o.WriteTimeout != o.ReadTimeout, "WriteTimeout",
		p.fault(o.WriteTimeout, "a command to be sent"), setTo("WriteTimeout", p.forReply()))
	a.addIf(p.tooLong(o.DialTimeout), "DialTimeout",
		p.fault(max(o.DialTimeout, 0), "a connection"), setTo("DialTimeout", p.forDial()))
	a.addIf(dialTries(o) > 1 && dialWait(o) > p.between, "DialerRetryTimeout",
		fmt.Sprintf("waits %v before it dials again", dialWait(o)), setTo("DialerRetryTimeout", p.betweenDials()))
	a.addIf(longestBackoff(o) > p.between, "MinRetryBackoff",
		fmt.Sprintf("waits up to %v before it tries again", longestBackoff(o)), setTo("MinRetryBackoff", p.backoff()))
}

// addOfDials is for a client that can turn to another server, of which each
// dial to one that is gone keeps it.
func (a *advices) addOfDials(o *redis.Options, p patience) {
	most := p.dials(o)
	a.addIf(dialTries(o) > most, "DialerRetries",
		fmt.Sprintf("dials a server that is gone %d times before it turns to another", dialTries(o)),
		setTo("DialerRetries", most))
}

// addOfSentinels is about a sentinel that freezes: a client turns to another one
// when a reply is late, unless the time for the dial is up by then.
func (a *advices) addOfSentinels(o *redis.Options, p patience) {
	hurts := o.DialTimeout <= o.ReadTimeout && !p.tooLong(o.DialTimeout) && !p.tooLong(o.ReadTimeout)
	a.addIf(hurts, "ReadTimeout", "stays with a sentinel that does not answer, as its DialTimeout is not longer than its ReadTimeout",
		fmt.Sprintf("set ReadTimeout to %v and DialTimeout to %v", p.forReply(), p.forDial()))
}

// maxTopologyAge is how long a failover may stay unnoticed: a cluster client
// that cannot reach a node learns of its successor when it next loads the
// topology, by default once a minute. The cluster itself takes its node timeout
// and one to two seconds for the failover.
const maxTopologyAge = time.Second

// addOfTopology is about ClusterStateReloadInterval, which cannot be set for
// NewFailoverClusterClient. A sentinel tells that one of a failover, unless the
// sentinel goes together with the master.
func (a *advices) addOfTopology(o *redis.ClusterOptions) {
	remedy := setTo("ClusterStateReloadInterval", maxTopologyAge)
	if watchedBySentinels(o) {
		remedy = "use NewFailoverClient, or " + remedy
	}
	a.addIf(o.ClusterStateReloadInterval > maxTopologyAge, "ClusterStateReloadInterval",
		fmt.Sprintf("may notice a failover %v late", o.ClusterStateReloadInterval), remedy)
}

// addOfReplicas is about reads from replicas, to which replication is
// asynchronous. Routes turn on ReadOnly, as does ReplicaOnly for sentinels.
func (a *advices) addOfReplicas(o *redis.ClusterOptions) {
	const fault = "reads from replicas, which lag behind"
	a.addIf(o.RouteByLatency, "RouteByLatency", fault, "set RouteByLatency and ReadOnly to false")
	a.addIf(o.RouteRandomly, "RouteRandomly", fault, "set RouteRandomly and ReadOnly to false")
	option := "ReadOnly"
	if watchedBySentinels(o) {
		option = "ReplicaOnly"
	}
	a.addIf(o.ReadOnly && !o.RouteByLatency && !o.RouteRandomly, option, fault, setTo(option, false))
}

// watchedBySentinels tells the options of NewFailoverClusterClient: no
// addresses, and a function in their place that asks the sentinels.
func watchedBySentinels(o *redis.ClusterOptions) bool {
	return o.ClusterSlots != nil && len(o.Addrs) == 0
}

// cachesReads follows the conditions of go-redis: with another protocol, another
// database or a provider of credentials it does without the cache.
func cachesReads(o *redis.Options) bool {
	return (o.ClientSideCache != nil || o.ClientSideCacheConfig != nil) && o.Protocol == 3 && o.DB == 0 &&
		o.CredentialsProvider == nil && o.CredentialsProviderContext == nil && o.StreamingCredentialsProvider == nil
}

// cacheOption is the option that go-redis prefers where both are set.
func cacheOption(o *redis.Options) string {
	if o.ClientSideCache != nil {
		return "ClientSideCache"
	}
	return "ClientSideCacheConfig"
}

func setTo(option string, value any) string {
	return fmt.Sprintf("set %s to %v", option, value)
}

// patience is how long the parts of an operation may take.
type patience struct {
	try     time.Duration // for a connection or a reply
	between time.Duration // before the next try
	cost    string        // of longer tries
}

// patienceOf leaves a second try as long as the first, and half of that after a
// wait in between.
func patienceOf(operation time.Duration) patience {
	return patience{
		try: operation / 2, between: operation / 4,
		cost: fmt.Sprintf("which leaves too little of %v for a second try", operation),
	}
}

// maxNodeSilence is how long a node of a cluster may keep the client from asking
// another one for the topology: no deadline of a request ends that.
const maxNodeSilence = 3 * time.Second

func (p patience) inCluster() patience {
	if p.try > maxNodeSilence {
		p.try, p.cost = maxNodeSilence, "so long it may not notice a failover"
	}
	return p
}

// tooLong reports whether a limit is beyond the patience, as none is.
func (p patience) tooLong(limit time.Duration) bool {
	return limit <= 0 || limit > p.try
}

// forReply is 1 s where an operation may take 5 s.
func (p patience) forReply() time.Duration { return p.try * 2 / 5 }

// forDial is a little more, and leaves room for two dials in a try.
func (p patience) forDial() time.Duration { return p.try * 12 / 25 }

// betweenDials is what go-redis does on its own, unless that is too long.
func (p patience) betweenDials() time.Duration { return min(usualDialWait, p.between) }

// backoff is such that the longest is not too long, see [longestBackoff].
func (p patience) backoff() time.Duration { return min(usualBackoff, p.between/3) }

// fault tells what a limit that is too long does.
func (p patience) fault(limit time.Duration, what string) string {
	switch {
	case limit < 0:
		return fmt.Sprintf("waits for %s past every deadline", what)
	case limit == 0:
		return fmt.Sprintf("waits for %s without a limit of its own, %s", what, p.cost)
	}
	return fmt.Sprintf("waits up to %v for %s, %s", limit, what, p.cost)
}

// What go-redis does on its own.
const (
	usualDialTries = 5
	usualDialWait  = 100 * time.Millisecond
	usualBackoff   = 10 * time.Millisecond
)

// dials is how many there is time for, with the other limits as they should be.
func (p patience) dials(o *redis.Options) int {
	dial, wait := o.DialTimeout, dialWait(o)
	if p.tooLong(dial) {
		dial = p.forDial()
	}
	if wait > p.between {
		wait = p.betweenDials()
	}
	return max(1, int((p.try+wait)/(dial+wait)))
}

// dialTries is how often the pool of connections dials for one request.
func dialTries(o *redis.Options) int {
	if o.DialerRetries <= 0 {
		return usualDialTries
	}
	return o.DialerRetries
}

// dialWait is how long the pool waits between dials. A function of the host's is
// taken for short.
func dialWait(o *redis.Options) time.Duration {
	switch {
	case o.DialerRetryBackoff != nil:
		return 0
	case o.DialerRetryTimeout <= 0:
		return usualDialWait
	}
	return o.DialerRetryTimeout
}

// longestBackoff bounds the wait before the second try, which is MinRetryBackoff
// and up to twice that, but at most MaxRetryBackoff.
func longestBackoff(o *redis.Options) time.Duration {
	return min(3*o.MinRetryBackoff, o.MaxRetryBackoff)
}
