package redisclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Evictions watches for masters that evict keys when their memory is full. What
// is evicted looks like a user who is new, so nothing else tells of it.
//
// A master evicts if it has a maxmemory, and a maxmemory-policy other than
// noeviction. The volatile- policies count as noeviction: they evict keys with an
// expiry only, which the module gives to nothing but an empty hash or index entry
// and a value on its way to its place.
//
// It is safe for concurrent use.
type Evictions struct {
	client   redis.UniversalClient
	cfg      Config
	report   func(error)
	interval time.Duration
	masters  atomic.Int64
}

// evictionInterval is how often the masters are asked.
const evictionInterval = time.Minute

// evictionTimeout bounds a check, for masters that are silent.
const evictionTimeout = time.Second

// NewEvictions returns a watch of the masters behind client. Report is called
// with what [Evictions.Run] finds; it must return at once.
func NewEvictions(client redis.UniversalClient, cfg Config, report func(error)) *Evictions {
	return &Evictions{client: client, cfg: cfg, report: report, interval: evictionInterval}
}

// Check returns an error that names the masters that evict keys. A master that
// does not answer within a second, or does not know of eviction, is passed over.
// One that does not let the client ask is reported.
func (e *Evictions) Check(ctx context.Context) error {
	evicts, denied := e.ask(ctx)
	if denied != nil {
		e.report(denied)
	}
	return evicts
}

// Run checks every minute until ctx ends, and reports what differs from the check
// before.
func (e *Evictions) Run(ctx context.Context) {
	ticker := time.NewTicker(e.interval)
	defer ticker.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		evicts, _ := e.ask(ctx)
		if evicts != nil && evicts.Error() != last {
			e.report(evicts)
		}
		last = fmt.Sprint(evicts)
	}
}

// Masters returns how many masters evicted keys at the last check.
func (e *Evictions) Masters() int { return int(e.masters.Load()) }

// ask asks each master. Denied is of those that the client may not ask.
func (e *Evictions) ask(ctx context.Context) (evicts, denied error) {
	if e.cfg.AllowEviction {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, evictionTimeout)
	defer cancel()
	var mu sync.Mutex
	var found, refused []error
	// That some do not answer is for others to tell.
	_ = EachMaster(ctx, e.client, func(ctx context.Context, master *redis.Client) error {
		info, err := master.Info(ctx, memorySection).Result()
		mu.Lock()
		defer mu.Unlock()
		if policy, is := evictingPolicy(info); is {
			found = append(found, fmt.Errorf("the Redis at %s %w", master.Options().Addr, policyError(policy)))
		}
		if redis.HasErrorPrefix(err, "NOPERM") {
			refused = append(refused, fmt.Errorf("cannot tell whether the Redis at %s evicts keys: %w", master.Options().Addr, err))
		}
		return nil
	})
	e.masters.Store(int64(len(found)))
	return joinSorted(found), joinSorted(refused)
}

// memorySection is that of INFO, which needs no right to read the configuration.
const memorySection = "memory"

// evictingPolicy returns the maxmemory-policy of a server that evicts keys.
func evictingPolicy(info string) (policy string, evicts bool) {
	limited := false
	for line := range strings.Lines(info) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name {
		case "maxmemory":
			limited = value != "0"
		case "maxmemory_policy":
			policy = value
		}
	}
	keeps := policy == "" || policy == "noeviction" || strings.HasPrefix(policy, "volatile-")
	return policy, limited && !keeps
}

func policyError(policy string) error {
	return fmt.Errorf("evicts keys when its memory is full, since its maxmemory-policy is %s: users lose their push rules; set it to noeviction", policy)
}

// joinSorted joins errors, so that the same ones always give the same text.
func joinSorted(errs []error) error {
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}
