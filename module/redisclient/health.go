package redisclient

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
)

var _ module.Health = (*Health)(nil)

// Health is a [module.Health] for a Redis. It is safe for concurrent use.
type Health struct {
	client redis.UniversalClient
	cfg    Config
}

// NewHealth returns the health of the Redis that client connects to. Without a
// client, nil, it is always well.
func NewHealth(client redis.UniversalClient, cfg Config) *Health { return &Health{client, cfg} }

// healthTimeout bounds an answer: one half is for finding the masters,
// where a cluster client first asks a node that may be silent, the other for
// their answers.
const healthTimeout = time.Second

// Healthy implements [module.Health].
func (h *Health) Healthy(ctx context.Context) error {
	if h.client == nil {
		return nil
	}
	search, cancel := context.WithTimeout(ctx, healthTimeout/2)
	defer cancel()
	var mu sync.Mutex
	var silent, wrong []error
	well := 0
	err := EachMaster(search, h.client, func(_ context.Context, master *redis.Client) error {
		ctx, cancel := context.WithTimeout(ctx, healthTimeout/2)
		defer cancel()
		failure, misfit := h.inspect(ctx, master)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case failure != nil:
			silent = append(silent, fmt.Errorf("the Redis at %s: %w", master.Options().Addr, failure))
		case misfit != nil:
			wrong = append(wrong, fmt.Errorf("the Redis at %s %w", master.Options().Addr, misfit))
		default:
			well++
		}
		return nil
	})
	if len(wrong) > 0 || well == 0 {
		return errors.Join(append(append(wrong, silent...), err)...)
	}
	return nil
}

// inspect returns why a master cannot serve, or else why it is not one to be used.
func (h *Health) inspect(ctx context.Context, master *redis.Client) (failure, misfit error) {
	var hello, script *redis.Cmd
	var memory *redis.StringCmd
	_, _ = master.Pipelined(ctx, func(p redis.Pipeliner) error { // each command has its own error
		hello = p.Do(ctx, "HELLO")
		script = p.Eval(ctx, "return 1", nil)
		memory = p.Info(ctx, memorySection)
		return nil
	})
	if err := script.Err(); err != nil {
		return fmt.Errorf("cannot run a script: %w", err), nil
	}
	if policy, evicts := evictingPolicy(memory.Val()); evicts && !h.cfg.AllowEviction {
		return nil, policyError(policy)
	}
	about, err := properties(hello)
	if err != nil {
		return nil, nil // not every user may ask
	}
	_, forCluster := h.client.(*redis.ClusterClient)
	switch {
	case about["role"] != "" && about["role"] != "master":
		return nil, fmt.Errorf("is a %s", about["role"])
	case !forCluster && about["mode"] == "cluster":
		return nil, errors.New("is a node of a cluster, but the client is for one server")
	case forCluster && about["mode"] == "standalone":
		return nil, errors.New("is no node of a cluster, but the client is for one")
	}
	return nil, nil
}

// properties are the texts that HELLO answers, in either protocol.
func properties(hello *redis.Cmd) (map[string]string, error) {
	answer, err := hello.Result()
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	add := func(name, value any) {
		if name, value, ok := twoTexts(name, value); ok {
			all[name] = value
		}
	}
	switch answer := answer.(type) {
	case map[any]any:
		for name, value := range answer {
			add(name, value)
		}
	case []any:
		for i := 0; i+1 < len(answer); i += 2 {
			add(answer[i], answer[i+1])
		}
	}
	return all, nil
}

func twoTexts(a, b any) (first, second string, ok bool) {
	first, ok = a.(string)
	if ok {
		second, ok = b.(string)
	}
	return first, second, ok
}
