package redistest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// askTimeout bounds the wait for one node, which may be paused. It is shorter
// than the time after which the cluster itself gives such a node up.
const askTimeout = time.Second

// MasterOf returns the running server that is now the master of the slot. Every
// running node is asked about itself, and of several that claim the slot the one
// with the latest claim is meant, as for the cluster itself. It is an error when
// none does, as after a crash until a replica has taken over, and when no server
// that claims the slot answers within a second.
func (c *ClusterServers) MasterOf(ctx context.Context, slot int) (*Server, error) {
	master, err := c.owner(ctx, slot)
	if err != nil {
		return nil, err
	}
	return master.Server, nil
}

// ReplicasOf returns the running servers that now say that they are replicas of
// the given one, in the order of Nodes. A server that does not answer within a
// second is left out.
func (c *ClusterServers) ReplicasOf(ctx context.Context, master *Server) ([]*Server, error) {
	node, err := c.node(master)
	if err != nil {
		return nil, err
	}
	views, err := c.views(ctx)
	if len(views) == 0 {
		return nil, errors.Join(errors.New("no node answers"), err)
	}
	var replicas []*Server
	for _, v := range views {
		if v.self().master == node.id {
			replicas = append(replicas, v.node.Server)
		}
	}
	return replicas, nil
}

// node returns what is known about the server.
func (c *ClusterServers) node(server *Server) (*clusterNode, error) {
	for _, node := range c.nodes {
		if node.Server == server {
			return node, nil
		}
	}
	return nil, fmt.Errorf("the server at %s is not in the cluster", server.Addr())
}

// owner returns the node that is now the master of the slot.
func (c *ClusterServers) owner(ctx context.Context, slot int) (*clusterNode, error) {
	views, err := c.views(ctx)
	if owner := ownerOf(views, slot); owner != nil {
		return owner, nil
	}
	return nil, errors.Join(fmt.Errorf("no running node is the master of slot %d", slot), err)
}

// ownerOf returns the node with the latest claim to the slot, nil if there is
// none.
func ownerOf(views []*view, slot int) *clusterNode {
	var latest *view
	for _, v := range views {
		if v.self().owns(slot) && (latest == nil || v.self().epoch > latest.self().epoch) {
			latest = v
		}
	}
	if latest == nil {
		return nil
	}
	return latest.node
}

// view is what one node says about the cluster.
type view struct {
	node    *clusterNode
	members map[string]member // by id
}

// self is what the node says about itself.
func (v *view) self() member {
	return v.members[v.node.id]
}

// isMaster tells whether the node says that it is a master.
func (v *view) isMaster() bool {
	return v.self().master == noMaster
}

// views asks the running nodes but those excepted, side by side. An error tells
// which of them did not answer; the views of the others are returned
// nevertheless.
func (c *ClusterServers) views(ctx context.Context, except ...*clusterNode) ([]*view, error) {
	views, errs := make([]*view, len(c.nodes)), make([]error, len(c.nodes))
	var group sync.WaitGroup
	for i, node := range c.nodes {
		group.Go(func() {
			if !slices.Contains(except, node) && node.running() {
				views[i], errs[i] = node.view(ctx)
			}
		})
	}
	group.Wait()
	views = slices.DeleteFunc(views, func(v *view) bool { return v == nil })
	return views, errors.Join(errs...)
}

// view asks the node.
func (n *clusterNode) view(ctx context.Context) (*view, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	text, err := n.admin.ClusterNodes(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.Addr(), err)
	}
	v := &view{node: n, members: map[string]member{}}
	for line := range strings.Lines(text) {
		m, err := parseMember(line)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", n.Addr(), err)
		}
		v.members[m.id] = m
	}
	// Another server may have taken the port of one that was just stopped.
	if !v.self().has("myself") {
		return nil, fmt.Errorf("another node answers at %s", n.Addr())
	}
	n.election.observe(v.isMaster())
	return v, nil
}

// member is one node as a node sees it.
type member struct {
	id     string
	flags  []string
	master string // id, or noMaster
	epoch  int64  // of the claim to the slots
	linked bool
	slots  []slotRange
	moves  []openMove // which a node tells of itself only
}

// noMaster stands in place of the master's id for a node that is a master.
const noMaster = "-"

type slotRange struct {
	first, last int
}

// openMove is a slot that is being moved.
type openMove struct {
	slot  int
	out   bool   // to the other node, not from it
	other string // id
}

func (m member) owns(slot int) bool {
	return slices.ContainsFunc(m.slots, func(r slotRange) bool { return r.first <= slot && slot <= r.last })
}

func (m member) has(flags ...string) bool {
	return slices.ContainsFunc(flags, func(flag string) bool { return slices.Contains(m.flags, flag) })
}

// parseMember reads a line of the answer to CLUSTER NODES: id, address, flags,
// master, the times of the last ping and pong, epoch, state of the link, slots.
func parseMember(line string) (member, error) {
	fields := strings.Fields(line)
	if len(fields) < 8 {
		return member{}, fmt.Errorf("cannot read the node %q", line)
	}
	epoch, err := strconv.ParseInt(fields[6], 10, 64)
	if err != nil {
		return member{}, fmt.Errorf("cannot read the node %q", line)
	}
	m := member{
		id:     fields[0],
		flags:  strings.Split(fields[2], ","),
		master: fields[3],
		epoch:  epoch,
		linked: fields[7] == "connected",
	}
	for _, field := range fields[8:] {
		if err := m.parseSlots(field); err != nil {
			return member{}, fmt.Errorf("cannot read the slots of the node %q: %w", line, err)
		}
	}
	return m, nil
}

// parseSlots reads "1", "1-3", "[2->-id]" for a slot on its way out, or
// "[2-<-id]" for one on its way in.
func (m *member) parseSlots(field string) error {
	if inner, open := strings.CutPrefix(field, "["); open {
		number, rest, _ := strings.Cut(strings.TrimSuffix(inner, "]"), "-")
		direction, other, _ := strings.Cut(rest, "-")
		slot, err := strconv.Atoi(number)
		m.moves = append(m.moves, openMove{slot: slot, out: direction == ">", other: other})
		return err
	}
	from, to, isRange := strings.Cut(field, "-")
	if !isRange {
		to = from
	}
	first, err := strconv.Atoi(from)
	if err != nil {
		return err
	}
	last, err := strconv.Atoi(to)
	m.slots = append(m.slots, slotRange{first, last})
	return err
}
