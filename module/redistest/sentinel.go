package redistest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	masterName      = "mymaster"
	sentinelConfig  = "sentinel.conf"
	sentinelTimeout = 20 * time.Second
)

// SentinelServers is a master with one replica, watched by one sentinel.
type SentinelServers struct {
	master, replica, sentinel *Server
}

// Sentinel starts a master, a replica and a sentinel that alone may decide on a
// failover, and waits until the sentinel knows the two others. The sentinel
// takes the master for dead after 1 s of silence.
func Sentinel(t testing.TB) *SentinelServers {
	t.Helper()
	// A sentinel that finds no replica at first looks again after 10 s only.
	servers := Replicated(t, 1).Servers()
	s := &SentinelServers{master: servers[0], replica: servers[1]}
	s.sentinel = mustLaunch(t, freePort, sentinelRole(s.master.port))
	ctx, cancel := context.WithTimeout(context.Background(), sentinelTimeout)
	defer cancel()
	if err := s.waitKnown(ctx); err != nil {
		t.Fatalf("the sentinel does not know the replica: %v\n%s", err, logs([]*Server{s.sentinel, s.replica}))
	}
	return s
}

// Addr returns the host and port of the sentinel.
func (s *SentinelServers) Addr() string {
	return s.sentinel.Addr()
}

// MasterName returns the name under which the sentinel knows the master.
func (s *SentinelServers) MasterName() string {
	return masterName
}

// Master returns the server that began as the master. A failover does not
// change the answer.
func (s *SentinelServers) Master() *Server {
	return s.master
}

// Replica returns the server that began as the replica. A failover does not
// change the answer.
func (s *SentinelServers) Replica() *Server {
	return s.replica
}

// sentinelRole is the role of a sentinel. It has its settings in a file, where
// it keeps what it learns.
func sentinelRole(masterPort int) role {
	return func(port int, dir string) ([]string, error) {
		text := fmt.Sprintf(`port %d
bind %s
daemonize no
sentinel monitor %[3]s %[2]s %[4]d 1
sentinel down-after-milliseconds %[3]s 1000
sentinel failover-timeout %[3]s 5000
`, port, localhost, masterName, masterPort)
		if err := os.WriteFile(filepath.Join(dir, sentinelConfig), []byte(text), 0o600); err != nil {
			return nil, err
		}
		return []string{sentinelConfig, "--sentinel"}, nil
	}
}

// waitKnown waits until the sentinel knows the replica as one that follows the
// master.
func (s *SentinelServers) waitKnown(ctx context.Context) error {
	client := redis.NewSentinelClient(&redis.Options{
		Addr:                     s.Addr(),
		ContextTimeoutEnabled:    true,
		MaintNotificationsConfig: noMaintenance(),
	})
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
