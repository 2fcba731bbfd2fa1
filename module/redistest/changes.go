package redistest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"
)

const (
	moveBatch = 100 // keys that MoveRest moves with one command

	// The node that runs MIGRATE does not answer while it waits for the target. With a
	// timeout below the node timeout, the cluster does not consider that node dead.
	migrateTimeout = time.Second

	// A replica gives up a CLUSTER FAILOVER after 5 s.
	failoverTimeout = 6 * time.Second
)

// Failover promotes the replica to master of its slots, without losing acknowledged
// writes. It first waits until the cluster is whole, and afterwards until most nodes
// know the new master, usually 0.1 s. Only one of Failover, [ClusterServers.Fix] and
// [SlotMove.Finish] runs at a time.
//
// Do not promote a server that was promoted and replaced within the last two node
// timeouts: Redis 7.0 would count its old votes, and clients would lose writes.
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

func (c *ClusterServers) takeOver(ctx context.Context, replica *clusterNode, slot int) error {
	for {
		failoverErr := replica.admin.ClusterFailover(ctx).Err()
		once, cancel := context.WithTimeout(ctx, failoverTimeout)
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
			return fmt.Errorf("CLUSTER FAILOVER on %s: %w", replica.Addr(), errors.Join(failoverErr, err))
		}
	}
}

// Fix repeats "redis-cli --cluster fix" until it has ended a move of the slot that a
// failover has interrupted. All masters must run.
//
// Fix first marks the slot as importing on every master that has keys of the slot but does
// not own it. Otherwise redis-cli would find no move if failovers have replaced both of its
// masters.
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
		output, err := exec.CommandContext(ctx, "redis-cli", "--cluster", "fix", owner.Addr(), "--cluster-yes").CombinedOutput()
		if err != nil {
			return fmt.Errorf("redis-cli --cluster fix: %w\n%s", err, output)
		}
		return nil
	})
}

// SlotMove is a move of a slot to another master while clients use the slot. The source
// serves the keys that are not moved yet and answers ASK for all other keys of the
// slot; the target answers MOVED to clients that do not send ASKING. A command with
// keys on both masters gets TRYAGAIN. The methods are safe for concurrent use, and can
// be repeated after an error.
//
// Replicas of Redis up to 7 know nothing of a move. If one replaces a master during the
// move, clients cannot reach the moved keys until [ClusterServers.Fix]. A key that has
// just moved is lost if the target crashes.
type SlotMove struct {
	cluster  *ClusterServers
	slot     int
	from, to *clusterNode
}

// MoveSlot moves the slot with all its keys to a master, unless that master has it.
func (c *ClusterServers) MoveSlot(ctx context.Context, slot int, to *Server) error {
	master, err := c.MasterOf(ctx, slot)
	if err != nil || master == to {
		return err
	}
	move, err := c.BeginMove(ctx, slot, to)
	if err != nil {
		return err
	}
	return move.Finish(ctx)
}

// BeginMove begins to move the slot to another master. The caller must not begin a
// second move of the slot, or call [ClusterServers.Failover] for one of the two
// masters, until this move has ended.
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

// MoveKeys moves the given keys, except keys that the source does not have.
func (m *SlotMove) MoveKeys(ctx context.Context, keys ...string) error {
	if len(keys) == 0 {
		return nil
	}
	// An earlier failure can have left the key on both masters.
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

// MoveRest moves the remaining keys of the slot.
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

// Finish moves the remaining keys, makes the target the master of the slot, and tells
// all masters. A source without other slots becomes a replica.
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
	err := m.from.setSlot(ctx, m.slot, "node", m.to.id)
	if err != nil && !strings.Contains(err.Error(), "only with masters") { // it may have become a replica
		return err
	}
	for _, node := range m.cluster.nodes {
		if node.running() && node != m.from && node != m.to {
			// Without this call, a master learns the new owner a little later. A
			// replica refuses the call.
			_ = node.setSlot(ctx, m.slot, "node", m.to.id)
		}
	}
	return nil
}

// waitEpochs waits until all nodes know the latest epoch. Otherwise the target could
// take the slot with an older epoch, and later drop the slot and its keys.
func (c *ClusterServers) waitEpochs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, agreeTimeout)
	defer cancel()
	return poll(ctx, func(ctx context.Context) error {
		views, _ := c.views(ctx, nil)
		return checkEpochs(views)
	})
}

func (n *clusterNode) setSlot(ctx context.Context, slot int, action, id string) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := n.admin.Do(ctx, "cluster", "setslot", slot, action, id).Err(); err != nil {
		return fmt.Errorf("CLUSTER SETSLOT %d %s %s on %s: %w", slot, action, id, n.Addr(), err)
	}
	return nil
}
