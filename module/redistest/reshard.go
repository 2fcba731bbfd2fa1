package redistest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

const (
	moveBatch = 100 // keys that MoveSlot moves with one command
	// The server that gives the keys away answers nobody while it waits for the
	// other one. It must not seem dead to the cluster meanwhile.
	migrateTimeout = time.Second
	epochTimeout   = 5 * time.Second
)

// SlotMove is the move of a slot from one master to another while clients use
// it. The old master serves the keys that it still has and answers ASK for all
// others, so new keys are made on the new master. A command on keys that are on
// both sides gets TRYAGAIN. The new master answers MOVED to those whom no ASK has
// sent.
//
// Its methods may be called from any goroutine. After an error the step may be
// done, undone, or done on one side only; it is safe to repeat MoveKeys and
// Abandon, and to begin the move again.
//
// Redis up to 7 tells replicas nothing of a move. When one of the two masters is
// replaced by a replica in the middle, the keys that have moved are out of reach,
// and the new master may refuse all commands, until the slot is moved again or
// [ClusterServers.SettleMoves] has done that. A key that has just moved may be on
// the new master alone, and is lost with it, however old it is.
type SlotMove struct {
	cluster  *ClusterServers
	slot     int
	from, to *clusterNode
}

// MoveSlot moves the slot with all its keys to another master, and does nothing
// when that has the slot already. It can be called again after an error, and
// goes on with what it finds done. Calls wait for each other, and for those of
// Failover.
func (c *ClusterServers) MoveSlot(ctx context.Context, slot int, to *Server) error {
	if err := c.lockSlots(ctx); err != nil {
		return err
	}
	defer c.unlockSlots()
	return c.moveSlot(ctx, slot, to)
}

// moveSlot is MoveSlot with the lock held.
func (c *ClusterServers) moveSlot(ctx context.Context, slot int, to *Server) error {
	m, err := c.planMove(ctx, slot, to)
	if err != nil || m.from == m.to {
		return err
	}
	if err := m.begin(ctx); err != nil {
		return err
	}
	if err := m.MoveRest(ctx); err != nil {
		return err
	}
	return m.finish(ctx)
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

// BeginMove begins to move the slot from its master to another. It begins again
// what was begun before and not ended, also where a replica has replaced one of
// the two masters since. There must be one move of a slot at a time, and no
// failover of the two masters until it has ended.
func (c *ClusterServers) BeginMove(ctx context.Context, slot int, to *Server) (*SlotMove, error) {
	if err := c.lockSlots(ctx); err != nil {
		return nil, err
	}
	defer c.unlockSlots()
	m, err := c.planMove(ctx, slot, to)
	if err != nil {
		return nil, err
	}
	if m.from == m.to {
		return nil, fmt.Errorf("slot %d is on %s already", slot, to.Addr())
	}
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

// planMove finds out where the slot is.
func (c *ClusterServers) planMove(ctx context.Context, slot int, to *Server) (*SlotMove, error) {
	target, err := c.node(to)
	if err != nil {
		return nil, err
	}
	source, err := c.owner(ctx, slot)
	if err != nil {
		return nil, err
	}
	return &SlotMove{cluster: c, slot: slot, from: source, to: target}, nil
}

func (m *SlotMove) begin(ctx context.Context) error {
	m.cluster.begun[m.slot] = true
	// A node that was left with the slot open does not learn on its own that the
	// slot has another master now.
	if err := m.to.setSlot(ctx, m.slot, "node", m.from.id); err != nil {
		return err
	}
	if err := m.to.setSlot(ctx, m.slot, "importing", m.from.id); err != nil {
		return err
	}
	return m.from.setSlot(ctx, m.slot, "migrating", m.to.id)
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

// Finish makes the new master the master of the slot, and tells all running
// masters. It refuses, and the move goes on, when the old master still has keys
// of the slot. An old master that has no other slot becomes a replica.
func (m *SlotMove) Finish(ctx context.Context) error {
	if err := m.cluster.lockSlots(ctx); err != nil {
		return err
	}
	defer m.cluster.unlockSlots()
	return m.finish(ctx)
}

// finish is Finish with the lock held.
func (m *SlotMove) finish(ctx context.Context) error {
	if err := m.checkFinishable(ctx); err != nil {
		return err // without a wait
	}
	if err := m.waitEpochs(ctx); err != nil {
		return err
	}
	if err := m.checkFinishable(ctx); err != nil {
		return err
	}
	if err := m.to.setSlot(ctx, m.slot, "node", m.to.id); err != nil {
		return err
	}
	if err := m.from.setSlot(ctx, m.slot, "node", m.to.id); err != nil {
		return err
	}
	views, _ := m.cluster.views(ctx, m.from, m.to)
	for _, v := range views {
		if v.isMaster() {
			// It would learn that anyway, only a little later.
			_ = v.node.setSlot(ctx, m.slot, "node", m.to.id)
		}
	}
	return nil
}

// waitEpochs waits until the new master knows the epoch of the old one, and no
// other master has that epoch, which would make the old one change it. Else the
// new master could take the slot with an earlier epoch and, on hearing of the
// later one, drop the slot with all its keys.
func (m *SlotMove) waitEpochs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, epochTimeout)
	defer cancel()
	return poll(ctx, func(ctx context.Context) error {
		from, err := m.from.view(ctx)
		if err != nil {
			return err
		}
		epoch := from.self().epoch
		views, _ := m.cluster.views(ctx, m.from)
		for _, v := range views {
			if v.isMaster() && v.self().epoch == epoch {
				return fmt.Errorf("%s and %s have the same epoch", m.from.Addr(), v.node.Addr())
			}
			if v.node == m.to && v.members[m.from.id].epoch != epoch {
				return fmt.Errorf("%s does not know the epoch of %s", m.to.Addr(), m.from.Addr())
			}
		}
		return nil
	})
}

// checkFinishable succeeds when both masters have the slot open for this move,
// and no key is left that would be lost.
func (m *SlotMove) checkFinishable(ctx context.Context) error {
	if err := m.from.checkOpen(ctx, openMove{slot: m.slot, out: true, other: m.to.id}); err != nil {
		return err
	}
	if err := m.to.checkOpen(ctx, openMove{slot: m.slot, out: false, other: m.from.id}); err != nil {
		return err
	}
	keys, err := m.from.countKeys(ctx, m.slot)
	if err == nil && keys > 0 {
		err = fmt.Errorf("%s still has %d keys of slot %d", m.from.Addr(), keys, m.slot)
	}
	return err
}

// Abandon ends the move, and leaves the slot where it was. It refuses, and the
// move goes on, when the new master has keys of the slot: moved ones, or new
// ones that clients have made meanwhile.
func (m *SlotMove) Abandon(ctx context.Context) error {
	if err := m.refuseKeys(ctx); err != nil {
		return err
	}
	// The other way round, a client with an old ASK could still make a key on the
	// new master, where nobody would find it.
	if err := m.to.setSlot(ctx, m.slot, "stable"); err != nil {
		return err
	}
	if err := m.refuseKeys(ctx); err != nil { // one was made between the two
		return errors.Join(err, m.to.setSlot(ctx, m.slot, "importing", m.from.id))
	}
	return m.from.setSlot(ctx, m.slot, "stable")
}

// refuseKeys succeeds when the new master has no keys of the slot.
func (m *SlotMove) refuseKeys(ctx context.Context) error {
	keys, err := m.to.countKeys(ctx, m.slot)
	if err == nil && keys > 0 {
		err = fmt.Errorf("%s has %d keys of slot %d", m.to.Addr(), keys, m.slot)
	}
	return err
}

// SettleMoves ends the moves that were left half done. If another master than
// that of the slot has keys of it, because they have moved already, the slot is
// moved there. Otherwise it stays where it is.
//
// It goes on until it succeeds or the context ends: every running node must
// answer, and every slot that was being moved have a running master. No move may
// be under way.
func (c *ClusterServers) SettleMoves(ctx context.Context) error {
	if err := c.lockSlots(ctx); err != nil {
		return err
	}
	defer c.unlockSlots()
	return poll(ctx, func(ctx context.Context) error {
		views, err := c.views(ctx)
		errs := []error{err}
		slots := openSlots(views)
		maps.Copy(slots, c.begun) // which no node may have open any more, if both masters were replaced
		for slot := range slots {
			errs = append(errs, c.settle(ctx, slot, views))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		clear(c.begun)
		return nil
	})
}

// openSlots returns the slots that a node has open.
func openSlots(views []*view) map[int]bool {
	slots := map[int]bool{}
	for _, v := range views {
		for _, move := range v.self().moves {
			slots[move.slot] = true
		}
	}
	return slots
}

// settle brings the keys of the slot together and closes it everywhere.
func (c *ClusterServers) settle(ctx context.Context, slot int, views []*view) error {
	masters := slices.DeleteFunc(slices.Clone(views), func(v *view) bool { return !v.isMaster() })
	for _, v := range masters {
		keys, err := v.node.countKeys(ctx, slot)
		if err == nil && keys > 0 {
			err = c.moveSlot(ctx, slot, v.node.Server)
		}
		if err != nil {
			return err
		}
	}
	owner, err := c.owner(ctx, slot)
	if err != nil {
		return err
	}
	for _, v := range masters {
		m := &SlotMove{cluster: c, slot: slot, from: owner, to: v.node}
		if v.node == owner {
			continue
		}
		if err := m.Abandon(ctx); err != nil {
			return err
		}
	}
	return nil
}

// setSlot sends CLUSTER SETSLOT.
func (n *clusterNode) setSlot(ctx context.Context, slot int, action ...any) error {
	args := append([]any{"cluster", "setslot", slot}, action...)
	if err := n.admin.Do(ctx, args...).Err(); err != nil {
		return fmt.Errorf("CLUSTER SETSLOT %d %v on %s: %w", slot, action, n.Addr(), err)
	}
	return nil
}

func (n *clusterNode) countKeys(ctx context.Context, slot int) (int64, error) {
	keys, err := n.admin.ClusterCountKeysInSlot(ctx, slot).Result()
	if err != nil {
		return 0, fmt.Errorf("CLUSTER COUNTKEYSINSLOT on %s: %w", n.Addr(), err)
	}
	return keys, nil
}

// checkOpen succeeds when the node has the slot open in this way.
func (n *clusterNode) checkOpen(ctx context.Context, move openMove) error {
	v, err := n.view(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains(v.self().moves, move) {
		return fmt.Errorf("node %s is not moving slot %d any more", n.Addr(), move.slot)
	}
	return nil
}
