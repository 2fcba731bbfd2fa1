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
	// askTimeout bounds the wait for one node, which may be paused. It is shorter
	// than the time after which the cluster itself gives such a node up.
	askTimeout = time.Second

	// agreeTimeout is for nodes to hear of a change that has been made. It takes
	// them a second or two.
	agreeTimeout = 10 * time.Second
)

// view is what one node says about the cluster.
type view struct {
	node   *clusterNode
	info   map[string]string // of the cluster, and of its own replication
	ranges []slotRange       // which it tells clients
}

// slotRange is a range of slots with the nodes that have it, the master first. A
// replica that is new or seems dead is not among them.
type slotRange struct {
	first, last int
	ids         []string
}

// views asks the running nodes but the one excepted, side by side. An error tells
// which of them did not answer; the views of the others are returned nevertheless.
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
		fields, _ := readInfo(answer) // Exec has told of errors.
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

// master returns the id of the slot's master.
func (v *view) master(slot int) string {
	for _, r := range v.ranges {
		if r.first <= slot && slot <= r.last {
			return r.ids[0]
		}
	}
	return ""
}

// MasterOf returns the running server that is the master of the slot. It waits
// some seconds for that: after a crash there is none until a replica has taken
// over, and one that comes back takes itself for the master until it hears of that.
func (c *ClusterServers) MasterOf(ctx context.Context, slot int) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, agreeTimeout)
	defer cancel()
	return c.waitMaster(ctx, slot, nil)
}

// waitMaster waits for a master of the slot. The server excepted is not asked.
func (c *ClusterServers) waitMaster(ctx context.Context, slot int, except *Server) (master *Server, err error) {
	err = poll(ctx, func(ctx context.Context) error {
		views, errs := c.views(ctx, except)
		node, err := owner(views, slot)
		if err != nil {
			return errors.Join(err, errs)
		}
		master = node.Server
		return nil
	})
	return master, err
}

// owner returns the node that takes itself for the master of the slot, where it is
// alone and most of the others say so, too. Not all have to: the target of a move
// does not learn on its own that a replica has replaced the source.
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

// ReplicasOf returns the running replicas of the master that clients are told of,
// in the order of Nodes. A master without slots has none.
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

// WaitWhole waits until the running nodes find the cluster whole: all slots are
// served, all nodes know the latest change, tell clients the same, and of exactly
// these servers, and every replica follows its master. It does not matter which
// servers are stopped if the others serve all slots, but one that is paused must
// be resumed first. A slot whose move is under way is no obstacle.
//
// When the context ends before, the error tells what was still missing.
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
	if told, other := fmt.Sprint(v.ranges), fmt.Sprint(views[0].ranges); told != other {
		return fmt.Errorf("tells clients of %s, and %s of %s", told, views[0].node.Addr(), other)
	}
	named := map[string]bool{}
	for _, r := range v.ranges {
		for _, id := range r.ids {
			named[id] = true
		}
	}
	for _, other := range views {
		if !named[other.node.id] && other.info["role"] != "master" { // which may have no slots
			return fmt.Errorf("does not tell clients of %s", other.node.Addr())
		}
		delete(named, other.node.id)
	}
	if len(named) > 0 {
		return fmt.Errorf("tells clients of %d servers that do not run", len(named))
	}
	return nil
}

// checkEpochs succeeds when all nodes know the latest claim to slots.
func checkEpochs(views []*view) error {
	for _, v := range views {
		const epoch = "cluster_current_epoch"
		if mine, other := v.info[epoch], views[0].info[epoch]; mine != other {
			return fmt.Errorf("node %s knows epoch %s, and %s knows %s", v.node.Addr(), mine, views[0].node.Addr(), other)
		}
	}
	return nil
}
