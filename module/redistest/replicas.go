package redistest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

const replicationTimeout = startTimeout

// ReplicatedServers is a master with replicas, without failover.
type ReplicatedServers struct {
	master   *Server
	replicas []*Server
}

// Replicated starts a master and replicas, and waits until all replicas have the
// master's data. The arguments are added to each server's command line. A restart
// empties the master and the replicas, unless the arguments make the master save data.
func Replicated(t testing.TB, replicas int, args ...string) *ReplicatedServers {
	t.Helper()
	r := &ReplicatedServers{master: Single(t, args...)}
	for range replicas {
		replicaArgs := append(slices.Clone(args), "--replicaof", localhost, strconv.Itoa(r.master.port))
		r.replicas = append(r.replicas, Single(t, replicaArgs...))
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

// Servers returns the master and then the replicas.
func (r *ReplicatedServers) Servers() []*Server { return append([]*Server{r.master}, r.replicas...) }

// Master returns the master.
func (r *ReplicatedServers) Master() *Server { return r.master }

// Replicas returns the replicas.
func (r *ReplicatedServers) Replicas() []*Server { return slices.Clone(r.replicas) }

// checkFollowed succeeds when the replicas have acknowledged data. The state "online"
// is not enough, because the master may not send writes yet.
func checkFollowed(ctx context.Context, master *redis.Client, replicas int) error {
	info, err := readInfo(master.Info(ctx, "replication"))
	if err != nil {
		return err
	}
	following := 0
	for name, value := range info {
		isReplica := strings.HasPrefix(name, "slave") && strings.Contains(value, "state=online")
		if isReplica && !strings.Contains(value, "offset=0,") {
			following++
		}
	}
	if following != replicas {
		return fmt.Errorf("%d of %d replicas follow the master", following, replicas)
	}
	return nil
}
