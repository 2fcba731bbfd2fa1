package redisclient

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Durability is the guarantee that a change has before it is acknowledged. With the
// zero value, the master has it in memory, and may lose it in a crash or failover.
//
// A change without the guarantee after Timeout is not acknowledged. It may stay or be
// lost, and can safely be repeated.
type Durability struct {
	// Replicas is how many replicas must have the change (WAIT).
	Replicas int

	// AOF requires the change in the master's append-only file on disk (WAITAOF, Redis
	// 7.2 or later with appendonly yes).
	AOF bool

	// Timeout bounds the wait for the guarantee. It must be less than OperationTimeout,
	// and [Durability.MaxWait] less than the client's ReadTimeout. Default 500 ms. With
	// AOF and appendfsync everysec, some servers take a second: set 1.5 s.
	//
	// Before this wait, a change may wait for earlier changes of the user, and for waits
	// of other changes, which hold at most half of the client's connections.
	Timeout time.Duration
}

// DefaultDurabilityTimeout is the default of [Durability].Timeout.
const DefaultDurabilityTimeout = 500 * time.Millisecond

const everysecTimeout = 1500 * time.Millisecond

// ParseDurability parses "none", "replicas:1", "aof" or "replicas:2,aof", see
// [Durability.String]. Timeout is 1.5 s with aof, and the default otherwise.
func ParseDurability(text string) (Durability, error) {
	d := Durability{Timeout: DefaultDurabilityTimeout}
	if text == "none" {
		return d, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		count, found := strings.CutPrefix(part, "replicas:")
		n, err := strconv.Atoi(count)
		switch {
		case part == "aof" && !d.AOF:
			d.AOF, d.Timeout = true, everysecTimeout
		case found && err == nil && n > 0 && d.Replicas == 0:
			d.Replicas = n
		default:
			return Durability{}, fmt.Errorf("durability %q, want none, replicas:N, aof or replicas:N,aof", text)
		}
	}
	return d, nil
}

// String returns the guarantee without its timeout, for example "replicas:1,aof".
func (d Durability) String() string {
	var parts []string
	if d.Replicas > 0 {
		parts = append(parts, fmt.Sprintf("replicas:%d", d.Replicas))
	}
	if d.AOF {
		parts = append(parts, "aof")
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ",")
}

// IsRequired reports whether a change waits for anything.
func (d Durability) IsRequired() bool { return d.Replicas > 0 || d.AOF }

func (d Durability) needsTwoWaits() bool { return d.Replicas > 0 && d.AOF }

// Validate returns an error for each field that breaks the limits in its comment.
func (d Durability) Validate() error {
	var faults []error
	if d.Replicas < 0 {
		faults = append(faults, fmt.Errorf("Durability.Replicas is %d, want at least 0", d.Replicas))
	}
	if d.IsRequired() && d.Timeout < time.Millisecond {
		faults = append(faults, fmt.Errorf("Durability.Timeout is %v, want at least 1ms", d.Timeout))
	}
	return errors.Join(faults...)
}

// CheckClient returns an error for a client that cannot wait for the guarantee.
func (d Durability) CheckClient(client redis.UniversalClient) error {
	if !d.IsRequired() {
		return nil
	}
	var readTimeout time.Duration
	switch c := client.(type) {
	case *redis.Client:
		readTimeout = c.Options().ReadTimeout
	case *redis.ClusterClient:
		readTimeout = c.Options().ReadTimeout
	default:
		return fmt.Errorf("Durability %s needs a *redis.Client or *redis.ClusterClient, not a %T", d, client)
	}
	if wait := d.MaxWait(); readTimeout > 0 && readTimeout <= wait {
		return fmt.Errorf("Durability.Timeout is %v, with which %s takes up to %v, want less than the Redis client's ReadTimeout, %v",
			d.Timeout, d, wait, readTimeout)
	}
	return nil
}

// maxLateness is how late a server may end a wait: it checks every 100 ms.
const maxLateness = 200 * time.Millisecond

// MaxWait returns how long a change may wait for the guarantee, or 0 without one. A server
// may end the wait later than the Timeout; MaxWait includes this. The client's ReadTimeout
// must be longer.
func (d Durability) MaxWait() time.Duration {
	switch {
	case !d.IsRequired():
		return 0
	case d.needsTwoWaits():
		return d.Timeout + 2*maxLateness
	}
	return d.Timeout + maxLateness
}

// Check asks every master for the guarantee. An error means that a master can never
// give it; a shortage means that a master cannot give it at the moment, or did not
// reply.
func (d Durability) Check(ctx context.Context, client redis.UniversalClient) (shortages []string, err error) {
	if !d.IsRequired() {
		return nil, nil
	}
	var mu sync.Mutex
	err = EachMaster(ctx, client, func(ctx context.Context, master redis.UniversalClient) error {
		shortage, err := d.checkMaster(ctx, master)
		if lacksReply(err) { // other masters can serve their users
			shortage, err = err.Error(), nil
		}
		if shortage != "" {
			mu.Lock()
			defer mu.Unlock()
			shortages = append(shortages, shortage)
		}
		return err
	})
	return shortages, err
}

func (d Durability) checkMaster(ctx context.Context, master redis.UniversalClient) (shortage string, err error) {
	if d.AOF {
		if err := checkWAITAOF(ctx, master); err != nil {
			return "", err
		}
		// A client without the right to read settings gets an empty reply.
		if master.ConfigGet(ctx, "appendfsync").Val()["appendfsync"] == "no" {
			return fmt.Sprintf("Durability %s, but %s has appendfsync no", d, address(master)), nil
		}
	}
	if d.Replicas == 0 {
		return "", nil
	}
	info, err := master.Info(ctx, "replication").Result()
	if err != nil {
		return "", fmt.Errorf("INFO replication on %s: %w", address(master), err)
	}
	if online := strings.Count(info, "state=online"); online < d.Replicas {
		return fmt.Sprintf("Durability %s, but %s has %d replicas online", d, address(master), online), nil
	}
	return "", nil
}

// checkWAITAOF returns an error if a server refuses WAITAOF or does not reply.
func checkWAITAOF(ctx context.Context, master redis.UniversalClient) error {
	err := master.Do(ctx, "WAITAOF", 1, 0, 1).Err()
	if err == nil {
		return nil
	}
	err = fmt.Errorf("WAITAOF on %s: %w", address(master), err)
	var refusal redis.Error
	if errors.As(err, &refusal) {
		err = fmt.Errorf("Durability aof needs Redis 7.2 or later with appendonly yes: %w", err)
	}
	return err
}
