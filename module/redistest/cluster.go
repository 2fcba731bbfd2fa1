package redistest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	slotCount      = 16384
	clusterTimeout = startTimeout
)

// ClusterServers is a running Redis cluster.
//
// Its methods are safe for concurrent use while its test runs. Methods with a context
// return errors and do not fail the test, because servers may be stopped at the same
// time.
type ClusterServers struct {
	nodes    []*clusterNode
	masters  int
	replicas int // of each master
	args     []string

	// changing is locked while a slot gets another master. Two such changes at the same
	// time could get the same config epoch, and keys would be lost.
	changing sync.Mutex
}

type clusterNode struct {
	*Server
	id    string // the node id in the cluster, which a restart keeps
	admin *redis.Client
}

// Cluster starts a cluster and waits until it is whole; see [ClusterServers.WaitWhole].
// The arguments are added to each node's command line. The node timeout is 2 s, unless
// the arguments set another.
func Cluster(t testing.TB, masters, replicasPerMaster int, args ...string) *ClusterServers {
	t.Helper()
	c := &ClusterServers{masters: masters, replicas: replicasPerMaster}
	c.args = append([]string{"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "2000"}, args...)
	for range masters * (1 + replicasPerMaster) {
		c.nodes = append(c.nodes, c.launch(t))
	}
	ctx, cancel := context.WithTimeout(context.Background(), clusterTimeout)
	defer cancel()
	if err := c.form(ctx, replicasPerMaster); err != nil {
		t.Fatalf("cannot build the cluster: %v\n%s", err, logs(c.Nodes()))
	}
	return c
}

func (c *ClusterServers) launch(t testing.TB) *clusterNode {
	t.Helper()
	server := Single(t, c.args...)
	node := &clusterNode{Server: server, admin: server.adminClient()}
	closeAfter(t, node.admin)
	return node
}

// Newcomer adds a master without slots, with as many replicas as the other masters have,
// and waits until all nodes know it. No list of slots for clients has it before its first
// slot. No other method may run at the same time.
func (c *ClusterServers) Newcomer(t testing.TB) *Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), clusterTimeout)
	defer cancel()
	var added []*clusterNode
	for range 1 + c.replicas {
		added = append(added, c.launch(t))
	}
	if err := c.join(ctx, added[0], added[1:]...); err != nil {
		t.Fatalf("cannot add a master: %v\n%s", err, logs(c.Nodes()))
	}
	return added[0].Server
}

func (c *ClusterServers) join(ctx context.Context, master *clusterNode, replicas ...*clusterNode) (err error) {
	for _, node := range append([]*clusterNode{master}, replicas...) {
		if node.id, err = node.admin.ClusterMyID(ctx).Result(); err != nil {
			return fmt.Errorf("CLUSTER MYID: %w", err)
		}
		for _, other := range c.nodes {
			if err := node.admin.ClusterMeet(ctx, localhost, strconv.Itoa(other.port)).Err(); err != nil {
				return fmt.Errorf("CLUSTER MEET: %w", err)
			}
		}
		c.nodes = append(c.nodes, node)
	}
	for _, replica := range replicas {
		if err := c.follow(ctx, replica, master); err != nil {
			return err
		}
	}
	for _, node := range c.nodes {
		if err := poll(ctx, func(ctx context.Context) error { return node.knows(ctx, master) }); err != nil {
			return err
		}
	}
	return c.WaitWhole(ctx)
}

// follow makes a node a replica. The node refuses a master that it does not know yet.
func (c *ClusterServers) follow(ctx context.Context, replica, master *clusterNode) error {
	err := poll(ctx, func(ctx context.Context) error { return replica.admin.ClusterReplicate(ctx, master.id).Err() })
	if err != nil {
		return fmt.Errorf("CLUSTER REPLICATE on %s: %w", replica.Addr(), err)
	}
	return nil
}

func (n *clusterNode) knows(ctx context.Context, other *clusterNode) error {
	nodes, err := n.admin.ClusterNodes(ctx).Result()
	if err == nil && !strings.Contains(nodes, other.id) {
		err = fmt.Errorf("node %s does not know %s", n.Addr(), other.Addr())
	}
	return err
}

// form joins the nodes to a cluster. Redis-cli would need three masters, and choose the
// replicas' masters at random.
func (c *ClusterServers) form(ctx context.Context, replicasPerMaster int) error {
	for i, node := range c.nodes {
		id, err := node.admin.ClusterMyID(ctx).Result()
		if err != nil {
			return fmt.Errorf("CLUSTER MYID: %w", err)
		}
		node.id = id
		// If the nodes have different epochs, they need not resolve conflicts of
		// epochs.
		if err := node.admin.Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil {
			return fmt.Errorf("CLUSTER SET-CONFIG-EPOCH: %w", err)
		}
	}
	for i, node := range c.nodes {
		// Meeting every node is faster than gossip.
		for _, other := range c.nodes[i+1:] {
			if err := node.admin.ClusterMeet(ctx, localhost, strconv.Itoa(other.port)).Err(); err != nil {
				return fmt.Errorf("CLUSTER MEET: %w", err)
			}
		}
	}
	for i, node := range c.nodes[:c.masters] {
		if err := node.admin.ClusterAddSlotsRange(ctx, i*slotCount/c.masters, (i+1)*slotCount/c.masters-1).Err(); err != nil {
			return fmt.Errorf("CLUSTER ADDSLOTS: %w", err)
		}
	}
	for i, node := range c.nodes[c.masters:] {
		if err := c.follow(ctx, node, c.nodes[i/replicasPerMaster]); err != nil {
			return err
		}
	}
	return c.WaitWhole(ctx)
}

// Nodes returns the servers that started as masters, then the replicas of each of them,
// then each newcomer with its replicas.
func (c *ClusterServers) Nodes() []*Server {
	servers := make([]*Server, len(c.nodes))
	for i, node := range c.nodes {
		servers[i] = node.Server
	}
	return servers
}

// Masters returns the servers that started as masters, in the order of their slots; see
// [ClusterServers.MasterOf].
func (c *ClusterServers) Masters() []*Server { return c.Nodes()[:c.masters] }

// Addrs returns each node's host and port, in the order of Nodes, without newcomers.
func (c *ClusterServers) Addrs() []string {
	addrs := make([]string, c.masters*(1+c.replicas))
	for i := range addrs {
		addrs[i] = c.nodes[i].Addr()
	}
	return addrs
}

// Client returns a client that obeys deadlines and often reloads the state of the
// cluster. It is closed when the test ends.
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

func (c *ClusterServers) node(server *Server) (*clusterNode, error) {
	i := slices.IndexFunc(c.nodes, func(node *clusterNode) bool { return node.Server == server })
	if i < 0 {
		return nil, fmt.Errorf("the server at %s is not in the cluster", server.Addr())
	}
	return c.nodes[i], nil
}
