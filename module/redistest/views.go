package redistest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// askTimeout is the longest wait for one node, which may be paused; it is below the
	// node timeout.
	askTimeout = time.Second

	// agreeTimeout is the longest wait until all nodes know a change, usually 1 or 2 s.
	agreeTimeout = 10 * time.Second
)

type view struct {
	node   *clusterNode
	info   map[string]string // CLUSTER INFO and INFO replication
	ranges []slotRange       // CLUSTER SLOTS
}

// slotRange has the nodes of a range of slots, the master first. A node does not list
// replicas that are new or seem dead.
type slotRange struct {
	first, last int
	ids         []string
}

// views asks all running nodes but one for their view of the cluster. It returns an
// error if a node does not answer.
func (c *ClusterServers) views(ctx context.Context, except *Server) ([]*view, error) {
	views, errs := make([]*view, len(c.nodes)), make([]error, len(c.nodes))
	var group sync.WaitGroup
	for i, node := range c.nodes {
		group.Go(func() {
			if node.Server != except && node.running() {
				views[i], errs[i] = node.view(ctx)
			}
		})
	}
	group.Wait()
	return slices.DeleteFunc(views, func(v *view) bool { return v == nil }), errors.Join(errs...)
}

func (n *clusterNode) view(ctx context.Context) (*view, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	pipe := n.admin.Pipeline()
	slots, cluster, replication := pipe.ClusterSlots(ctx), pipe.ClusterInfo(ctx), pipe.Info(ctx, "replication")
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("node %s: %w", n.Addr(), err)
	}
	v := &view{node: n, info: map[string]string{}}
	for _, answer := range []*redis.StringCmd{cluster, replication} {
		fields, _ := readInfo(answer) // Exec would have returned the error
		maps.Copy(v.info, fields)
	}
	for _, answer := range slots.Val() {
		r := slotRange{first: answer.Start, last: answer.End}
		for _, node := range answer.Nodes {
			r.ids = append(r.ids, node.ID)
		}
		slices.Sort(r.ids[1:])
		v.ranges = append(v.ranges, r)
	}
	slices.SortFunc(v.ranges, func(a, b slotRange) int { return cmp.Compare(a.first, b.first) })
	return v, nil
}

func (v *view) master(slot int) string {
	for _, r := range v.ranges {
		if r.first <= slot && slot <= r.last {
			return r.ids[0]
		}
	}
	return ""
}

// MasterOf returns the running master of the slot. It waits up to 10 s: after a crash,
// the slot has no master until a replica is promoted, and the old master still
// considers itself the master when it returns.
func (c *ClusterServers) MasterOf(ctx context.Context, slot int) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, agreeTimeout)
	defer cancel()
	return c.WaitTakeover(ctx, slot, nil)
}

// WaitTakeover waits until a replica has replaced the slot's stopped or paused master,
// and most nodes know it. It returns the new master. This takes the node timeout and
// about 1 s more. A cluster of one or two masters has no failover, which needs a
// majority of the masters.
//
// Do not start the old master before WaitTakeover returns: it would still be the
// master, but empty unless it saves its data.
func (c *ClusterServers) WaitTakeover(ctx context.Context, slot int, from *Server) (master *Server, err error) {
	err = poll(ctx, func(ctx context.Context) error {
		views, errs := c.views(ctx, from)
		node, err := owner(views, slot)
		if err != nil {
			return errors.Join(err, errs)
		}
		master = node.Server
		return nil
	})
	return master, err
}

// owner returns the node that considers itself the master of the slot, if it is the
// only such node and most views agree. Some views may differ: the target of a move does
// not learn by itself that a replica has replaced the source.
func owner(views []*view, slot int) (*clusterNode, error) {
	var owner *view
	votes := map[string]int{}
	for _, v := range views {
		id := v.master(slot)
		votes[id]++
		if id == v.node.id {
			if owner != nil {
				return nil, fmt.Errorf("%s and %s are masters of slot %d", owner.node.Addr(), v.node.Addr(), slot)
			}
			owner = v
		}
	}
	if owner == nil || 2*votes[owner.node.id] <= len(views) {
		return nil, fmt.Errorf("most of %d nodes know no running master of slot %d", len(views), slot)
	}
	return owner.node, nil
}

// ReplicasOf returns the running replicas that the master lists for clients, in the
// order of Nodes. A master without slots lists none.
func (c *ClusterServers) ReplicasOf(ctx context.Context, master *Server) (replicas []*Server, err error) {
	node, err := c.node(master)
	if err != nil {
		return nil, err
	}
	v, err := node.view(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(v.ranges, func(r slotRange) bool { return r.ids[0] == node.id })
	for _, other := range c.nodes {
		if i >= 0 && other != node && other.running() && slices.Contains(v.ranges[i].ids, other.id) {
			replicas = append(replicas, other.Server)
		}
	}
	return replicas, nil
}

// WaitWhole waits until the running nodes serve all slots, every replica follows its
// master, and all nodes know the latest change and list exactly the running servers for
// clients. Stopped servers and moving slots are allowed, paused servers are not.
//
// When the context ends first, the error names the first condition that does not hold.
func (c *ClusterServers) WaitWhole(ctx context.Context) error {
	return poll(ctx, func(ctx context.Context) error {
		views, err := c.views(ctx, nil)
		if err != nil {
			return err
		}
		if len(views) == 0 {
			return errors.New("no node runs")
		}
		for _, v := range views {
			if err := v.checkWhole(views); err != nil {
				return fmt.Errorf("node %s: %w", v.node.Addr(), err)
			}
		}
		return checkEpochs(views)
	})
}

func (v *view) checkWhole(views []*view) error {
	if v.info["cluster_state"] != "ok" || v.info["cluster_slots_ok"] != strconv.Itoa(slotCount) {
		return fmt.Errorf("state %q with %s slots", v.info["cluster_state"], v.info["cluster_slots_ok"])
	}
	if link := v.info["master_link_status"]; link != "up" && v.info["role"] != "master" {
		return fmt.Errorf("the link to the master is %q", link)
	}
	if listed, other := fmt.Sprint(v.ranges), fmt.Sprint(views[0].ranges); listed != other {
		return fmt.Errorf("lists %s for clients, and %s lists %s", listed, views[0].node.Addr(), other)
	}
	listed := map[string]bool{}
	for _, r := range v.ranges {
		for _, id := range r.ids {
			listed[id] = true
		}
	}
	for _, other := range views {
		if !listed[other.node.id] && !other.lacksSlots(views) {
			return fmt.Errorf("does not list %s for clients", other.node.Addr())
		}
		delete(listed, other.node.id)
	}
	if len(listed) > 0 {
		return fmt.Errorf("lists %d servers for clients that do not run", len(listed))
	}
	return nil
}

// lacksSlots reports whether a node is a master without slots, or replicates one: no
// list for clients has these.
func (v *view) lacksSlots(views []*view) bool {
	if v.info["role"] == "master" {
		return !slices.ContainsFunc(v.ranges, func(r slotRange) bool { return r.ids[0] == v.node.id })
	}
	return slices.ContainsFunc(views, func(other *view) bool {
		return strconv.Itoa(other.node.port) == v.info["master_port"] && other.info["role"] == "master" && other.lacksSlots(views)
	})
}

func checkEpochs(views []*view) error {
	for _, v := range views {
		const epoch = "cluster_current_epoch"
		if mine, other := v.info[epoch], views[0].info[epoch]; mine != other {
			return fmt.Errorf("node %s knows epoch %s, and %s knows %s", v.node.Addr(), mine, views[0].node.Addr(), other)
		}
	}
	return nil
}
