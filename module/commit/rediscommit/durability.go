package rediscommit

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redisclient"
)

// Durability says what must have happened to a change before it is
// acknowledged. The zero value asks for nothing more than that the master has
// it in memory: a failover, or a crash of the master, can lose it.
//
// A change that does not come that far within Timeout is not acknowledged. It
// may stay or be lost; to repeat it is safe.
type Durability struct {
	// Replicas is how many replicas must have the change (WAIT).
	Replicas int

	// AOF is whether the master must have it on disk, in its append-only file
	// (WAITAOF, Redis 7.2 or later with appendonly yes).
	AOF bool

	// Timeout is how long a change may wait for all of it; it matters only where
	// something is asked for. Less than the OperationTimeout and the client's
	// ReadTimeout, though a server may end a wait 0.2 s late; default 500 ms.
	// With AOF and appendfsync everysec, some servers take a second for it: give
	// them 1.5 s. A change that finds others of the same user waiting, or
	// half of the connections to its master taken by waits, comes after them.
	Timeout time.Duration
}

// everySecond is a Timeout that is enough for appendfsync everysec.
const everySecond = 1500 * time.Millisecond

// ParseDurability reads the parts of a durability, separated by commas, as
// [Durability.String] writes them: "none", "replicas:1", "aof",
// "replicas:2,aof". Timeout is 1.5 s with aof, and else the default.
func ParseDurability(text string) (Durability, error) {
	d := DefaultConfig().Durability
	if text == "none" {
		return d, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		count, found := strings.CutPrefix(part, "replicas:")
		n, err := strconv.Atoi(count)
		switch {
		case part == "aof" && !d.AOF:
			d.AOF, d.Timeout = true, everySecond
		case found && err == nil && n > 0 && d.Replicas == 0:
			d.Replicas = n
		default:
			return Durability{}, fmt.Errorf("durability %q, want none, replicas:N, aof or replicas:N,aof", text)
		}
	}
	return d, nil
}

// String returns what is asked for, "none", "replicas:1", "aof".
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

func (d Durability) isAsked() bool { return d.Replicas > 0 || d.AOF }

// isBoth reports whether it takes two waits.
func (d Durability) isBoth() bool { return d.Replicas > 0 && d.AOF }

// validate joins an error for each field that is not as its comment says.
func (d Durability) validate() error {
	var faults []error
	if d.Replicas < 0 {
		faults = append(faults, fmt.Errorf("Durability.Replicas is %d, want at least 0", d.Replicas))
	}
	if d.isAsked() && d.Timeout < time.Millisecond {
		faults = append(faults, fmt.Errorf("Durability.Timeout is %v, want at least 1ms", d.Timeout))
	}
	return errors.Join(faults...)
}

// fits returns an error where a client cannot wait for what is asked.
func (d Durability) fits(client redis.UniversalClient) error {
	if !d.isAsked() {
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
	if longest := d.LongestWait(); readTimeout > 0 && readTimeout <= longest {
		return fmt.Errorf("Durability.Timeout is %v, with which %s takes up to %v, want less than the Redis client's ReadTimeout, %v",
			d.Timeout, d, longest, readTimeout)
	}
	return nil
}

// lateness is how long after its timeout a server may end a wait: it looks every
// 100 ms.
const lateness = 200 * time.Millisecond

// LongestWait is how long a change may wait, with servers that end each wait
// late, 0 if nothing is asked for. The client's ReadTimeout must be longer.
func (d Durability) LongestWait() time.Duration {
	switch {
	case !d.isAsked():
		return 0
	case d.Replicas > 0 && d.AOF:
		return d.Timeout + 2*lateness
	}
	return d.Timeout + lateness
}

// Check asks every master whether it can do what the durability asks for. An
// error means that one never will, a shortage that one cannot now.
func (d Durability) Check(ctx context.Context, client redis.UniversalClient) (shortages []string, err error) {
	if !d.isAsked() {
		return nil, nil
	}
	var mu sync.Mutex
	err = redisclient.EachMaster(ctx, client, func(ctx context.Context, master *redis.Client) error {
		shortage, err := d.checkMaster(ctx, master)
		if shortage != "" {
			mu.Lock()
			defer mu.Unlock()
			shortages = append(shortages, shortage)
		}
		return err
	})
	return shortages, err
}

func (d Durability) checkMaster(ctx context.Context, master *redis.Client) (shortage string, err error) {
	if d.AOF {
		if err := checkWAITAOF(ctx, master); err != nil {
			return "", err
		}
		// Not every user may ask for settings.
		if master.ConfigGet(ctx, "appendfsync").Val()["appendfsync"] == "no" {
			return fmt.Sprintf("Durability %s, but %s has appendfsync no", d, master.Options().Addr), nil
		}
	}
	if d.Replicas == 0 {
		return "", nil
	}
	info, err := master.Info(ctx, "replication").Result()
	if err != nil {
		return "", fmt.Errorf("INFO replication on %s: %w", master.Options().Addr, err)
	}
	if online := strings.Count(info, "state=online"); online < d.Replicas {
		return fmt.Sprintf("Durability %s, but %s has %d replicas online", d, master.Options().Addr, online), nil
	}
	return "", nil
}

// checkWAITAOF tells a server that refuses the command from one that could not
// be asked.
func checkWAITAOF(ctx context.Context, master *redis.Client) error {
	err := master.Do(ctx, "WAITAOF", 1, 0, 1).Err()
	if err == nil {
		return nil
	}
	err = fmt.Errorf("WAITAOF on %s: %w", master.Options().Addr, err)
	var refusal redis.Error
	if errors.As(err, &refusal) {
		err = fmt.Errorf("Durability aof needs Redis 7.2 or later with appendonly yes: %w", err)
	}
	return err
}
