package hostile

import (
	"context"
	"time"

	"github.com/pushfx/pushfx/integration/bench/servers"
)

// machine is the Redis and the demo host.
type machine struct {
	*servers.Bed
	host *servers.Process
}

// startServers starts the demo host with flags on a Redis. Without a program it
// is built.
func startServers(ctx context.Context, program string, flags []string) (*machine, error) {
	bed, err := servers.New(ctx)
	if err != nil {
		return nil, err
	}
	host, err := bed.StartDemo(ctx, program, flags...)
	if err != nil {
		bed.Close()
		return nil, err
	}
	return &machine{bed, host}, nil
}

// memory is the most that the servers had in RAM, in bytes.
type memory struct{ host, redis int64 }

const memoryInterval = 50 * time.Millisecond

// watchMemory samples the servers' memory until ctx ends, and returns the
// maximum.
func (s *machine) watchMemory(ctx context.Context) (most memory) {
	ticker := time.NewTicker(memoryInterval)
	defer ticker.Stop()
	for {
		most.host = max(most.host, s.host.Resident())
		most.redis = max(most.redis, s.Redis.Resident())
		select {
		case <-ctx.Done():
			return most
		case <-ticker.C:
		}
	}
}
