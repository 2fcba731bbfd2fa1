package redistest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/redis/go-redis/v9"
)

const (
	masterName      = "mymaster"
	sentinelTimeout = startTimeout
)

// SentinelServers is a sentinel with a master and a replica.
type SentinelServers struct {
	master, replica, sentinel *Server
}

// Sentinel starts a master, a replica and a sentinel that knows both. The only sentinel
// decides alone, and fails over when the master is silent for 1 s.
func Sentinel(t testing.TB) *SentinelServers {
	t.Helper()
	// A sentinel that finds no replica looks again only after 10 s.
	pair := Replicated(t, 1)
	s := &SentinelServers{master: pair.master, replica: pair.replicas[0]}
	s.sentinel = launch(t, []string{sentinelConfig(t, s.master.port), "--sentinel"})
	ctx, cancel := context.WithTimeout(context.Background(), sentinelTimeout)
	defer cancel()
	if err := s.waitKnown(ctx); err != nil {
		t.Fatalf("the sentinel does not know the replica: %v\n%s", err, logs([]*Server{s.sentinel, s.replica}))
	}
	return s
}

// Addr returns the sentinel's host and port.
func (s *SentinelServers) Addr() string { return s.sentinel.Addr() }

// MasterName returns the sentinel's name for the master.
func (s *SentinelServers) MasterName() string { return masterName }

// Master returns the server that started as the master.
func (s *SentinelServers) Master() *Server { return s.master }

// Replica returns the server that started as the replica.
func (s *SentinelServers) Replica() *Server { return s.replica }

func sentinelConfig(t testing.TB, masterPort int) (path string) {
	t.Helper()
	text := fmt.Sprintf(`bind %[1]s
daemonize no
sentinel monitor %[2]s %[1]s %[3]d 1
sentinel down-after-milliseconds %[2]s 1000
sentinel failover-timeout %[2]s 5000
`, localhost, masterName, masterPort)
	path = filepath.Join(t.TempDir(), "sentinel.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (s *SentinelServers) waitKnown(ctx context.Context) error {
	client := redis.NewSentinelClient(s.sentinel.options())
	defer client.Close()
	return poll(ctx, func(ctx context.Context) error {
		replicas, err := client.Replicas(ctx, masterName).Result()
		if err != nil {
			return err
		}
		if len(replicas) != 1 {
			return fmt.Errorf("the sentinel knows %d replicas", len(replicas))
		}
		flags, link := replicas[0]["flags"], replicas[0]["master-link-status"]
		if flags != "slave" || link != "ok" {
			return fmt.Errorf("the sentinel sees the replica as %q with link %q", flags, link)
		}
		return nil
	})
}
