package rediscommit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/redisclient"
)

// Config configures all stores on Redis.
type Config struct {
	// KeyPrefix begins every key. Hosts that serve the same users share it; other hosts
	// on the same Redis use another. It has no braces, which would change the hash
	// slot. Default: none.
	KeyPrefix string

	// OperationTimeout bounds each load or update, with its retries. The end of a request
	// bounds them, too. The client must honour deadlines (ContextTimeoutEnabled). Above
	// zero and at most 30 s; default 5 s.
	OperationTimeout time.Duration

	// Durability says when an update is acknowledged. Default: once the master has it
	// in memory.
	Durability Durability

	// CacheBytes bounds the cache memory of each of the three stores (rules, pushers,
	// pushkeys). A read of a cached value only asks Redis whether it is still stored; a
	// change of it saves a round trip. Values of a sixteenth of the cache or more are
	// not cached. 0 turns the cache off; default 64 MiB.
	CacheBytes int
}

// Options are optional dependencies of the stores.
type Options struct {
	// Now is the clock for the versions of values: a [redisclient.Clock], on which all
	// hosts agree. Nil means the host's clock, which suits a single host.
	Now func() time.Time

	// Pipelines are shared by all stores on one client. Nil means new ones for this
	// store alone.
	Pipelines *redisclient.Pipelines

	// Observer receives lost races, unknown outcomes and durability waits. Nil means
	// none.
	Observer observe.Observer
}

// Durability is the guarantee that a change has before it is acknowledged.
type Durability = redisclient.Durability

// ParseDurability parses "none", "replicas:1", "aof" or "replicas:2,aof", see
// [Durability.String]. Timeout is 1.5 s with aof, and the default otherwise.
func ParseDurability(text string) (Durability, error) { return redisclient.ParseDurability(text) }

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		OperationTimeout: 5 * time.Second, Durability: Durability{Timeout: redisclient.DefaultDurabilityTimeout},
		CacheBytes: 64 << 20,
	}
}

// PipelinesOn returns the shared pipelines, or new ones for the client.
func (o Options) PipelinesOn(client redis.UniversalClient) *redisclient.Pipelines {
	if o.Pipelines != nil {
		return o.Pipelines
	}
	return redisclient.NewPipelines(client, o.Observer)
}

// Bound returns a context that ends within OperationTimeout.
func (c Config) Bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if end, found := ctx.Deadline(); found && time.Until(end) <= c.OperationTimeout {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.OperationTimeout)
}

// maxOperationTimeout is far below the 10 minutes for which empty values keep
// revisions.
const maxOperationTimeout = 30 * time.Second

// Validate joins an error for each field that breaks the limits in its comment.
func (c Config) Validate() error {
	faults := []error{c.Durability.Validate()}
	if strings.ContainsAny(c.KeyPrefix, "{}") {
		faults = append(faults, fmt.Errorf("KeyPrefix is %q, want no braces", c.KeyPrefix))
	}
	if c.CacheBytes < 0 {
		faults = append(faults, fmt.Errorf("CacheBytes is %d, want at least 0", c.CacheBytes))
	}
	if c.OperationTimeout <= 0 || c.OperationTimeout > maxOperationTimeout {
		faults = append(faults, fmt.Errorf("OperationTimeout is %v, want above 0 and at most %v", c.OperationTimeout, maxOperationTimeout))
	} else if c.Durability.IsRequired() && c.Durability.Timeout >= c.OperationTimeout {
		faults = append(faults, fmt.Errorf("Durability.Timeout is %v, want less than OperationTimeout, %v", c.Durability.Timeout, c.OperationTimeout))
	}
	return errors.Join(faults...)
}
