package redistest

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Trips is a hook that records each request of a client: the name of a command, or the joined names of a pipeline, such
// as "evalsha+get". It omits the commands that begin a connection. Trips is safe for concurrent use.
type Trips struct {
	mu   sync.Mutex
	sent []string
}

// RecordTrips records the client's requests from now on.
func RecordTrips(client interface{ AddHook(redis.Hook) }) *Trips {
	t := &Trips{}
	client.AddHook(t)
	return t
}

// Take returns the requests since the last call.
func (t *Trips) Take() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	sent := t.sent
	t.sent = nil
	return sent
}

func (t *Trips) add(commands ...redis.Cmder) {
	var names []string
	for _, command := range commands {
		names = append(names, command.Name())
	}
	if slices.Contains([]string{"hello", "client"}, names[0]) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent = append(t.sent, strings.Join(names, "+"))
}

// DialHook records nothing.
func (t *Trips) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook records a command.
func (t *Trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		t.add(command)
		return next(ctx, command)
	}
}

// ProcessPipelineHook records a pipeline.
func (t *Trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		t.add(commands...)
		return next(ctx, commands)
	}
}
