package redistest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// WaitWhole waits until the running nodes find the cluster whole: each has links
// to all others and agrees with them on who is master of which slots and who is
// whose replica, tells clients of exactly these servers for all slots, and
// every replica follows its master. It does not matter which servers are stopped
// if the others serve all slots, but one that is paused must be resumed first.
// A slot whose move is under way is no obstacle.
//
// When the context ends before, the error tells what was still missing.
func (c *ClusterServers) WaitWhole(ctx context.Context) error {
	return poll(ctx, c.checkWhole)
}

func (c *ClusterServers) checkWhole(ctx context.Context) error {
	views, err := c.views(ctx)
	if err != nil {
		return err
	}
	if len(views) == 0 {
		return errors.New("no node runs")
	}
	for _, v := range views {
		if err := v.checkAgrees(views); err != nil {
			return fmt.Errorf("node %s: %w", v.node.Addr(), err)
		}
		if err := v.checkServes(ctx, views); err != nil {
			return fmt.Errorf("node %s: %w", v.node.Addr(), err)
		}
	}
	return nil
}

// checkAgrees succeeds when the node sees all others as they see themselves.
func (v *view) checkAgrees(views []*view) error {
	for _, other := range views {
		if err := v.checkSees(other.self()); err != nil {
			return fmt.Errorf("%s: %w", other.node.Addr(), err)
		}
	}
	return nil
}

// checkSees succeeds when the node sees a running one as that sees itself.
func (v *view) checkSees(other member) error {
	seen, known := v.members[other.id]
	switch {
	case !known:
		return errors.New("not known")
	case seen.has("fail", "fail?", "handshake"):
		return fmt.Errorf("seen as %q", seen.flags)
	case !seen.linked:
		return errors.New("not linked")
	case seen.master != other.master:
		return fmt.Errorf("seen as replica of %q, not %q", seen.master, other.master)
	case !slices.Equal(seen.slots, other.slots):
		return fmt.Errorf("seen as master of the slots %v, not %v", seen.slots, other.slots)
	}
	return nil
}

// checkServes succeeds when the node serves all slots, tells clients of all the
// servers that run and no others, and replication works.
func (v *view) checkServes(ctx context.Context, views []*view) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	text, err := v.node.admin.ClusterInfo(ctx).Result()
	if err != nil {
		return err
	}
	info := parseInfo(text)
	want := map[string]string{"cluster_state": "ok", "cluster_slots_ok": strconv.Itoa(slotCount)}
	for name, value := range want {
		if info[name] != value {
			return fmt.Errorf("%s is %q, not %q", name, info[name], value)
		}
	}
	if err := v.checkSlots(ctx, views); err != nil {
		return err
	}
	return checkReplication(ctx, v.node.admin, len(family(views, v.node.id))-1)
}

// checkSlots succeeds when the node tells clients of all slots, and for each of
// the master and all its replicas.
func (v *view) checkSlots(ctx context.Context, views []*view) error {
	// The client's own function for this command is deprecated, but the one that
	// it recommends needs Redis 7.0.
	ranges, err := v.node.admin.Do(ctx, "cluster", "slots").Slice()
	if err != nil {
		return err
	}
	covered := 0
	for _, entry := range ranges {
		slots, ids, err := parseSlotRange(entry)
		if err != nil {
			return err
		}
		covered += slots
		want := family(views, ids[0])
		slices.Sort(want)
		slices.Sort(ids)
		if !slices.Equal(ids, want) {
			return fmt.Errorf("clients are told of the nodes %q for some slots, not of %q", ids, want)
		}
	}
	if covered != slotCount {
		return fmt.Errorf("%d slots are covered, not %d", covered, slotCount)
	}
	return nil
}

// family returns the ids of the master, if it runs, and of the running nodes
// that say that they follow it.
func family(views []*view, master string) []string {
	var ids []string
	for _, v := range views {
		if v.node.id == master || v.self().master == master {
			ids = append(ids, v.node.id)
		}
	}
	return ids
}

// parseSlotRange reads an entry of the answer to CLUSTER SLOTS: the first slot,
// the last, and the nodes that serve them, the master before its replicas, each
// with address, port and id.
func parseSlotRange(entry any) (slots int, ids []string, err error) {
	fields, _ := entry.([]any)
	if len(fields) < 3 {
		return 0, nil, fmt.Errorf("cannot read the slot range %v", entry)
	}
	first, firstOK := fields[0].(int64)
	last, lastOK := fields[1].(int64)
	if !firstOK || !lastOK {
		return 0, nil, fmt.Errorf("cannot read the slot range %v", entry)
	}
	for _, field := range fields[2:] {
		node, _ := field.([]any)
		if len(node) < 3 {
			return 0, nil, fmt.Errorf("cannot read the slot range %v", entry)
		}
		ids = append(ids, fmt.Sprint(node[2]))
	}
	return int(last-first) + 1, ids, nil
}
