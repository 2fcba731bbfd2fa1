package redistest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"time"
)

const (
	moveBatch = 100 // keys that MoveRest moves with one command

	// The server that gives the keys away answers no client while it waits for the
	// other one. It must not seem dead to the cluster in that time.
	migrateTimeout = time.Second

	// A replica gives up a failover that an operator asked for after 5 s.
	failoverTime = 6 * time.Second
)

// Failover makes the replica the master in place of its own master. It waits for a
// whole cluster before, and then until most nodes know the new master. No
// acknowledged write is lost: the master holds writes back until the replica has
// them all. It usually takes a tenth of a second. Calls wait for each other, and
// for the ends of moves.
//
// A replica that became a master less than two node timeouts ago, and was itself
// replaced since, must not be asked: Redis 7.0 counts its old votes again, so it
// takes over without asking, gets undone, and clients lose what they wrote to it.
func (c *ClusterServers) Failover(ctx context.Context, replica *Server) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, clusterTimeout)
	defer cancel()
	node, err := c.node(replica)
	if err != nil {
		return err
	}
	if err := c.WaitWhole(ctx); err != nil {
		return err
	}
	v, err := node.view(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(v.ranges, func(r slotRange) bool { return slices.Contains(r.ids[1:], node.id) })
	if i < 0 {
		return fmt.Errorf("node %s is not a replica", replica.Addr())
	}
	return c.takeOver(ctx, node, v.ranges[i].first)
}

// takeOver asks the replica to take over until it has the slot.
func (c *ClusterServers) takeOver(ctx context.Context, replica *clusterNode, slot int) error {
	for {
		asked := replica.admin.ClusterFailover(ctx).Err()
		once, cancel := context.WithTimeout(ctx, failoverTime)
		err := poll(once, func(ctx context.Context) error {
			views, _ := c.views(ctx, nil)
			master, err := owner(views, slot)
			if err == nil && master != replica {
				err = errors.New("the replica has not taken over")
			}
			return err
		})
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("CLUSTER FAILOVER on %s: %w", replica.Addr(), errors.Join(asked, err))
		}
	}
}

// WaitTakeover waits until the slot has another master than the given one, which
// was stopped or paused, and most of the other nodes know that. It returns the
// new master. A master that is started again before is the master still, but
// without the data that the arguments do not have it save.
//
// This takes the node timeout and about a second more. A majority of the masters
// must run: a cluster of one master or two has no failover after a crash.
func (c *ClusterServers) WaitTakeover(ctx context.Context, slot int, from *Server) (*Server, error) {
	return c.waitMaster(ctx, slot, from)
}

// Fix has redis-cli end a move of the slot that a failover has interrupted. It
// goes on until that succeeds or the context ends. All masters must run.
// [ClusterServers.MasterOf] tells where the slot is then.
//
// Where both masters were replaced, no node has the slot open any more. So every
// master that has keys of it is told that it imports the slot, else redis-cli
// would not look.
func (c *ClusterServers) Fix(ctx context.Context, slot int) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	return poll(ctx, func(ctx context.Context) error {
		views, err := c.views(ctx, nil)
		if err != nil {
			return err
		}
		owner, err := owner(views, slot)
		if err != nil {
			return err
		}
		for _, v := range views {
			keys, err := v.node.admin.ClusterCountKeysInSlot(ctx, slot).Result()
			if err == nil && keys > 0 && v.node != owner && v.info["role"] == "master" {
				err = v.node.setSlot(ctx, slot, "importing", owner.id)
			}
			if err != nil {
				return err
			}
		}
		said, err := exec.CommandContext(ctx, "redis-cli", "--cluster", "fix", owner.Addr(), "--cluster-yes").CombinedOutput()
		if err != nil {
			return fmt.Errorf("redis-cli --cluster fix: %w\n%s", err, said)
		}
		return nil
	})
}

// SlotMove is the move of a slot from one master to another while clients use
// it. The old master serves the keys that it still has and answers ASK for all
// others, so new keys are made on the new master. A command on keys that are on
// both sides gets TRYAGAIN. The new master answers MOVED to a client without an
// ASK. Its methods may be called from any goroutine, and after an error again.
//
// Redis up to 7 tells replicas nothing of a move. When one of the two masters is
// replaced by a replica in the middle, the keys that have moved are out of reach
// until [ClusterServers.Fix] has been called. A key that has just moved may be on
// the new master alone, and is lost with it, however old it is.
type SlotMove struct {
	cluster  *ClusterServers
	slot     int
	from, to *clusterNode
}

// MoveSlot moves the slot with all its keys to another master, and does nothing
// when that has the slot already.
func (c *ClusterServers) MoveSlot(ctx context.Context, slot int, to *Server) error {
	master, err := c.MasterOf(ctx, slot)
	if err != nil || master == to {
		return err
	}
	m, err := c.BeginMove(ctx, slot, to)
	if err != nil {
		return err
	}
	return m.Finish(ctx)
}

// BeginMove begins to move the slot from its master to another. There must be one
// move of a slot at a time, and no failover of the two masters until it has ended.
func (c *ClusterServers) BeginMove(ctx context.Context, slot int, to *Server) (*SlotMove, error) {
	target, err := c.node(to)
	if err != nil {
		return nil, err
	}
	master, err := c.MasterOf(ctx, slot)
	if err != nil {
		return nil, err
	}
	if master == to {
		return nil, fmt.Errorf("slot %d is on %s already", slot, to.Addr())
	}
	source, err := c.node(master)
	if err != nil {
		return nil, err
	}
	if err := target.setSlot(ctx, slot, "importing", source.id); err != nil {
		return nil, err
	}
	if err := source.setSlot(ctx, slot, "migrating", target.id); err != nil {
		return nil, err
	}
	return &SlotMove{cluster: c, slot: slot, from: source, to: target}, nil
}

// MoveKeys moves these keys of the slot. Keys that the old master does not have
// are passed over.
func (m *SlotMove) MoveKeys(ctx context.Context, keys ...string) error {
	if len(keys) == 0 {
		return nil
	}
	// A failure can leave a key on both sides. Then the old master serves it.
	args := []any{"migrate", localhost, m.to.port, "", 0, migrateTimeout.Milliseconds(), "replace"}
	if m.from.password != "" {
		args = append(args, "auth", m.from.password)
	}
	args = append(args, "keys")
	for _, key := range keys {
		args = append(args, key)
	}
	if err := m.from.admin.Do(ctx, args...).Err(); err != nil {
		return fmt.Errorf("MIGRATE from %s to %s: %w", m.from.Addr(), m.to.Addr(), err)
	}
	return nil
}

// MoveRest moves all keys of the slot that are left.
func (m *SlotMove) MoveRest(ctx context.Context) error {
	for {
		keys, err := m.from.admin.ClusterGetKeysInSlot(ctx, m.slot, moveBatch).Result()
		if err != nil {
			return fmt.Errorf("CLUSTER GETKEYSINSLOT on %s: %w", m.from.Addr(), err)
		}
		if len(keys) == 0 {
			return nil
		}
		if err := m.MoveKeys(ctx, keys...); err != nil {
			return err
		}
	}
}

// Finish moves all keys that are left, makes the new master the master of the
// slot, and tells all running masters. An old master that has no other slot
// becomes a replica.
func (m *SlotMove) Finish(ctx context.Context) error {
	m.cluster.changing.Lock()
	defer m.cluster.changing.Unlock()
	if err := m.MoveRest(ctx); err != nil {
		return err
	}
	if err := m.cluster.waitEpochs(ctx); err != nil {
		return err
	}
	if err := m.to.setSlot(ctx, m.slot, "node", m.to.id); err != nil {
		return err
	}
	if err := m.from.setSlot(ctx, m.slot, "node", m.to.id); err != nil {
		return err
	}
	for _, node := range m.cluster.nodes {
		if node.running() && node != m.from && node != m.to {
			// A master would learn that anyway, only a little later. A replica refuses.
			_ = node.setSlot(ctx, m.slot, "node", m.to.id)
		}
	}
	return nil
}

// waitEpochs waits until all nodes that answer know the latest claim to slots.
// Else the new master could take the slot with an earlier epoch and, on hearing of
// the later one, drop the slot with all its keys.
func (c *ClusterServers) waitEpochs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, agreeTimeout)
	defer cancel()
	return poll(ctx, func(ctx context.Context) error {
		views, _ := c.views(ctx, nil)
		return checkEpochs(views)
	})
}

// setSlot sends CLUSTER SETSLOT.
func (n *clusterNode) setSlot(ctx context.Context, slot int, action, id string) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := n.admin.Do(ctx, "cluster", "setslot", slot, action, id).Err(); err != nil {
		return fmt.Errorf("CLUSTER SETSLOT %d %s %s on %s: %w", slot, action, id, n.Addr(), err)
	}
	return nil
}
