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
	clusterNodeTimeout = 2000 // ms
)

// ClusterServers is a running Redis cluster.
type ClusterServers struct {
	nodes             []*Server
	masters           int
	replicasPerMaster int
}

// Cluster starts a cluster and waits until every node finds it whole: all slots
// are covered, and all replicas are linked to their masters. The arguments are
// added to the command line of every node. The node timeout is 2 s, unless they
// give another "--cluster-node-timeout".
func Cluster(t testing.TB, masters, replicasPerMaster int, args ...string) *ClusterServers {
	t.Helper()
	if masters < 1 || replicasPerMaster < 0 {
		t.Fatalf("a cluster cannot have %d masters with %d replicas each", masters, replicasPerMaster)
	}
	c := &ClusterServers{masters: masters, replicasPerMaster: replicasPerMaster}
	build := serverRole(append(clusterArgs(), args...))
	for range masters * (1 + replicasPerMaster) {
		c.nodes = append(c.nodes, mustLaunch(t, freeClusterPort, build))
	}
	t.Cleanup(func() { closeAll(c.nodes) })

	ctx, cancel := context.WithTimeout(context.Background(), clusterTimeout)
	defer cancel()
	if err := c.form(ctx); err != nil {
		t.Fatalf("cannot build the cluster: %v\n%s", err, logs(c.nodes))
	}
	return c
}

func clusterArgs() []string {
	return []string{
		"--cluster-enabled", "yes",
		"--cluster-config-file", "nodes.conf",
		"--cluster-node-timeout", strconv.Itoa(clusterNodeTimeout),
	}
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
	return append([]*Server(nil), c.nodes...)
}

// Masters returns the servers that began as masters, in the order of their
// slots. A failover does not change the answer.
func (c *ClusterServers) Masters() []*Server {
	return append([]*Server(nil), c.nodes[:c.masters]...)
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

// form makes a cluster of the nodes.
func (c *ClusterServers) form(ctx context.Context) error {
	clients := make([]*redis.Client, len(c.nodes))
	for i, node := range c.nodes {
		clients[i] = node.adminClient()
		defer clients[i].Close()
	}
	if err := c.assign(ctx, clients); err != nil {
		return err
	}
	if err := c.meet(ctx, clients); err != nil {
		return err
	}
	if err := c.replicate(ctx, clients); err != nil {
		return err
	}
	for i, client := range clients {
		err := poll(ctx, func(ctx context.Context) error { return c.checkNode(ctx, client) })
		if err != nil {
			return fmt.Errorf("node %s is not ready: %w", c.nodes[i].Addr(), err)
		}
	}
	return nil
}

// assign gives every node an epoch of its own, so that they need not settle
// that among themselves, and every master its share of the slots.
func (c *ClusterServers) assign(ctx context.Context, clients []*redis.Client) error {
	for i, client := range clients {
		if err := client.Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil {
			return fmt.Errorf("CLUSTER SET-CONFIG-EPOCH: %w", err)
		}
	}
	for i := range c.masters {
		first, last := i*slotCount/c.masters, (i+1)*slotCount/c.masters-1
		if err := addSlots(ctx, clients[i], first, last); err != nil {
			return fmt.Errorf("CLUSTER ADDSLOTS: %w", err)
		}
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
func (c *ClusterServers) meet(ctx context.Context, clients []*redis.Client) error {
	for i, client := range clients {
		for _, other := range c.nodes[i+1:] {
			if err := client.ClusterMeet(ctx, localhost, strconv.Itoa(other.port)).Err(); err != nil {
				return fmt.Errorf("CLUSTER MEET: %w", err)
			}
		}
	}
	return nil
}

// replicate makes replicas of the nodes that are no masters. A node refuses as
// long as it does not know its master.
func (c *ClusterServers) replicate(ctx context.Context, clients []*redis.Client) error {
	for i := c.masters; i < len(clients); i++ {
		master := (i - c.masters) / c.replicasPerMaster
		id, err := clients[master].ClusterMyID(ctx).Result()
		if err != nil {
			return fmt.Errorf("CLUSTER MYID: %w", err)
		}
		err = poll(ctx, func(ctx context.Context) error {
			return clients[i].ClusterReplicate(ctx, id).Err()
		})
		if err != nil {
			return fmt.Errorf("CLUSTER REPLICATE on %s: %w", c.nodes[i].Addr(), err)
		}
	}
	return nil
}

// checkNode succeeds when the node finds the cluster whole.
func (c *ClusterServers) checkNode(ctx context.Context, client *redis.Client) error {
	text, err := client.ClusterInfo(ctx).Result()
	if err != nil {
		return err
	}
	info := parseInfo(text)
	want := map[string]string{
		"cluster_state":       "ok",
		"cluster_slots_ok":    strconv.Itoa(slotCount),
		"cluster_known_nodes": strconv.Itoa(len(c.nodes)),
		"cluster_size":        strconv.Itoa(c.masters),
	}
	for name, value := range want {
		if info[name] != value {
			return fmt.Errorf("%s is %q, not %q", name, info[name], value)
		}
	}
	if err := c.checkSlots(ctx, client); err != nil {
		return err
	}
	return checkReplication(ctx, client, c.replicasPerMaster)
}

// checkSlots succeeds when the node tells clients of all slots and all replicas.
func (c *ClusterServers) checkSlots(ctx context.Context, client *redis.Client) error {
	// The client's own function for this command is deprecated, but the one that
	// it recommends needs Redis 7.0.
	ranges, err := client.Do(ctx, "cluster", "slots").Slice()
	if err != nil {
		return err
	}
	covered := 0
	for _, r := range ranges {
		slots, nodes, err := parseSlotRange(r)
		if err != nil {
			return err
		}
		covered += slots
		if want := 1 + c.replicasPerMaster; nodes != want {
			return fmt.Errorf("a range of slots is on %d nodes, not %d", nodes, want)
		}
	}
	if covered != slotCount {
		return fmt.Errorf("%d slots are covered, not %d", covered, slotCount)
	}
	return nil
}

// parseSlotRange reads an entry of the answer to CLUSTER SLOTS: the first slot,
// the last, and the nodes that serve them.
func parseSlotRange(entry any) (slots, nodes int, err error) {
	fields, _ := entry.([]any)
	if len(fields) < 2 {
		return 0, 0, fmt.Errorf("cannot read the slot range %v", entry)
	}
	first, firstOK := fields[0].(int64)
	last, lastOK := fields[1].(int64)
	if !firstOK || !lastOK {
		return 0, 0, fmt.Errorf("cannot read the slot range %v", entry)
	}
	return int(last-first) + 1, len(fields) - 2, nil
}
