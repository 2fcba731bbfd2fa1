package redistest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const replicationTimeout = 20 * time.Second

// ReplicatedServers is a master with replicas, without a cluster or a sentinel:
// nothing changes the roles.
type ReplicatedServers struct {
	master   *Server
	replicas []*Server
}

// Replicated starts a master and this number of replicas, and waits until all
// follow it. The arguments are added to the command line of every server. A
// master that is stopped and started again comes back without the data that the
// arguments do not have it save, and then so do its replicas.
func Replicated(t testing.TB, replicas int, args ...string) *ReplicatedServers {
	t.Helper()
	r := &ReplicatedServers{master: Single(t, args...)}
	for range replicas {
		following := append(slices.Clone(args), "--replicaof", localhost, strconv.Itoa(r.master.port))
		r.replicas = append(r.replicas, Single(t, following...))
	}
	client := r.master.adminClient()
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), replicationTimeout)
	defer cancel()
	err := poll(ctx, func(ctx context.Context) error { return checkFollowed(ctx, client, replicas) })
	if err != nil {
		t.Fatalf("cannot make replicas: %v\n%s", err, logs(r.Servers()))
	}
	return r
}

// Servers returns all servers, first the master.
func (r *ReplicatedServers) Servers() []*Server { return append([]*Server{r.master}, r.replicas...) }

// Master returns the master.
func (r *ReplicatedServers) Master() *Server { return r.master }

// Replicas returns all servers but the master.
func (r *ReplicatedServers) Replicas() []*Server { return slices.Clone(r.replicas) }

// checkFollowed succeeds when this number of replicas have confirmed part of the
// master's stream of writes. The state "online" is not enough: a master may hold
// the writes back until the first confirmation.
func checkFollowed(ctx context.Context, master *redis.Client, replicas int) error {
	info, err := readInfo(master.Info(ctx, "replication"))
	if err != nil {
		return err
	}
	fed := 0
	for name, value := range info {
		isReplica := strings.HasPrefix(name, "slave") && strings.Contains(value, "state=online")
		if isReplica && !strings.Contains(value, "offset=0,") {
			fed++
		}
	}
	if fed != replicas {
		return fmt.Errorf("the master feeds %d replicas, not %d", fed, replicas)
	}
	return nil
}
