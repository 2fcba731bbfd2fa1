package redistest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	slotCount          = 16384
	clusterTimeout     = 30 * time.Second
	nodeTimeoutOption  = "--cluster-node-timeout"
	clusterNodeTimeout = 2000 // ms
)

// ClusterServers is a running Redis cluster.
//
// Its methods may be called from any goroutine while the test that started it
// runs. Those that take a context return problems as errors, because what they
// ask for may fail for good reason when servers are stopped at the same time.
type ClusterServers struct {
	nodes             []*clusterNode
	masters           int
	replicasPerMaster int
	votesExpire       time.Duration // how long servers remember an election
	slotsLock         chan struct{} // full while somebody changes who owns slots
	begun             map[int]bool  // slots of which a move has begun; under the lock
}

// clusterNode is a server of a cluster.
type clusterNode struct {
	*Server
	id       string // which a restart does not change
	admin    *redis.Client
	election election
}

// Cluster starts a cluster and waits until it is whole, as
// [ClusterServers.WaitWhole] has it. The arguments are added to the command line
// of every node. The node timeout is 2 s, unless they give another
// "--cluster-node-timeout".
func Cluster(t testing.TB, masters, replicasPerMaster int, args ...string) *ClusterServers {
	t.Helper()
	if masters < 1 || replicasPerMaster < 0 {
		t.Fatalf("a cluster cannot have %d masters with %d replicas each", masters, replicasPerMaster)
	}
	args = append(clusterArgs(), args...)
	c := &ClusterServers{
		masters:           masters,
		replicasPerMaster: replicasPerMaster,
		votesExpire:       votesExpire(args),
		slotsLock:         make(chan struct{}, 1),
		begun:             map[int]bool{},
	}
	build := serverRole(args)
	for range masters * (1 + replicasPerMaster) {
		server := mustLaunch(t, freeClusterPort, build)
		node := &clusterNode{Server: server, admin: server.adminClient()}
		closeAfter(t, node.admin)
		c.nodes = append(c.nodes, node)
	}
	t.Cleanup(func() { closeAll(c.Nodes()) })

	ctx, cancel := context.WithTimeout(context.Background(), clusterTimeout)
	defer cancel()
	if err := c.form(ctx); err != nil {
		t.Fatalf("cannot build the cluster: %v\n%s", err, logs(c.Nodes()))
	}
	return c
}

func clusterArgs() []string {
	return []string{
		"--cluster-enabled", "yes",
		"--cluster-config-file", "nodes.conf",
		nodeTimeoutOption, strconv.Itoa(clusterNodeTimeout),
	}
}

// votesExpire returns four node timeouts, and a little more.
func votesExpire(args []string) time.Duration {
	timeout, err := strconv.Atoi(option(args, nodeTimeoutOption))
	if err != nil {
		return 0 // The servers will not start.
	}
	return time.Duration(4*max(timeout, 1000)+100) * time.Millisecond
}

// closeAll ends the servers side by side, which is faster than one by one.
func closeAll(servers []*Server) {
	var group sync.WaitGroup
	for _, s := range servers {
		group.Go(s.close)
	}
	group.Wait()
}

// Nodes returns all servers of the cluster: those that began as masters, then
// the replicas of the first of these, then those of the second, and so on.
func (c *ClusterServers) Nodes() []*Server {
	servers := make([]*Server, len(c.nodes))
	for i, node := range c.nodes {
		servers[i] = node.Server
	}
	return servers
}

// Masters returns the servers that began as masters, in the order of their
// slots. A failover does not change the answer; see [ClusterServers.MasterOf].
func (c *ClusterServers) Masters() []*Server {
	return c.Nodes()[:c.masters]
}

// Addrs returns the host and port of every node, in the order of Nodes.
func (c *ClusterServers) Addrs() []string {
	addrs := make([]string, len(c.nodes))
	for i, node := range c.nodes {
		addrs[i] = node.Addr()
	}
	return addrs
}

// Client returns a client for the cluster that obeys the deadline of a context
// and is quick to notice changes. It is closed when the given test ends.
func (c *ClusterServers) Client(t testing.TB) *redis.ClusterClient {
	t.Helper()
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                      c.Addrs(),
		Password:                   c.nodes[0].password,
		ContextTimeoutEnabled:      true,
		ClusterStateReloadInterval: time.Second,
		MaintNotificationsConfig:   noMaintenance(),
	})
	closeAfter(t, client)
	return client
}

// lockSlots waits until nobody else changes who owns slots. Without the lock,
// two changes can make claims to slots that are equally late, and keys get lost.
func (c *ClusterServers) lockSlots(ctx context.Context) error {
	select {
	case c.slotsLock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *ClusterServers) unlockSlots() { <-c.slotsLock }

// form makes a cluster of the nodes.
func (c *ClusterServers) form(ctx context.Context) error {
	if err := c.assign(ctx); err != nil {
		return err
	}
	if err := c.meet(ctx); err != nil {
		return err
	}
	if err := c.replicate(ctx); err != nil {
		return err
	}
	return c.WaitWhole(ctx)
}

// assign gives every node an epoch of its own, so that they need not settle
// that among themselves, and every master its share of the slots.
func (c *ClusterServers) assign(ctx context.Context) error {
	for i, node := range c.nodes {
		id, err := node.admin.ClusterMyID(ctx).Result()
		if err != nil {
			return fmt.Errorf("CLUSTER MYID: %w", err)
		}
		node.id = id
		if err := node.admin.Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil {
			return fmt.Errorf("CLUSTER SET-CONFIG-EPOCH: %w", err)
		}
	}
	for i := range c.masters {
		first, last := i*slotCount/c.masters, (i+1)*slotCount/c.masters-1
		if err := addSlots(ctx, c.nodes[i].admin, first, last); err != nil {
			return fmt.Errorf("CLUSTER ADDSLOTS: %w", err)
		}
		c.nodes[i].election.isMaster = true
	}
	return nil
}

// addSlots uses the command of Redis 7.0 or, before, the one that names every
// slot.
func addSlots(ctx context.Context, client *redis.Client, first, last int) error {
	err := client.ClusterAddSlotsRange(ctx, first, last).Err()
	if err == nil || !strings.Contains(strings.ToLower(err.Error()), "unknown subcommand") {
		return err
	}
	slots := make([]int, 0, last-first+1)
	for slot := first; slot <= last; slot++ {
		slots = append(slots, slot)
	}
	return client.ClusterAddSlots(ctx, slots...).Err()
}

// meet introduces every pair of nodes, which is faster than gossip.
func (c *ClusterServers) meet(ctx context.Context) error {
	for i, node := range c.nodes {
		for _, other := range c.nodes[i+1:] {
			if err := node.admin.ClusterMeet(ctx, localhost, strconv.Itoa(other.port)).Err(); err != nil {
				return fmt.Errorf("CLUSTER MEET: %w", err)
			}
		}
	}
	return nil
}

// replicate makes replicas of the nodes that are no masters. A node refuses as
// long as it does not know its master.
func (c *ClusterServers) replicate(ctx context.Context) error {
	for i, node := range c.nodes[c.masters:] {
		master := c.nodes[i/c.replicasPerMaster]
		err := poll(ctx, func(ctx context.Context) error {
			return node.admin.ClusterReplicate(ctx, master.id).Err()
		})
		if err != nil {
			return fmt.Errorf("CLUSTER REPLICATE on %s: %w", node.Addr(), err)
		}
	}
	return nil
}
