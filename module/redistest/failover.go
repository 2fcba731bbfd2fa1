package redistest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module/retry"
)

const (
	// A replica gives up a failover that an operator asked for after 5 s.
	failoverTime = 6 * time.Second
	// A replica hears of changes within a second or two.
	informedTime = 5 * time.Second
)

// errRefused says that a replica is no master some time after it was asked to
// become one.
var errRefused = errors.New("the replica has not taken over")

// Failover makes the replica the master in place of its own master, which must
// be running, and waits until the nodes that answer know that. No acknowledged
// write is lost: the master holds writes back until the replica has them all.
//
// It usually takes a tenth of a second. A replica that became a master less than
// four node timeouts ago, and was itself replaced since, has to wait for their
// end first. Calls wait for each other, and for those of MoveSlot. When the
// context ends before, the failover may still happen in the next five seconds,
// or else the master holds writes back for as long.
func (c *ClusterServers) Failover(ctx context.Context, replica *Server) error {
	node, err := c.node(replica)
	if err != nil {
		return err
	}
	v, err := node.view(ctx)
	if err != nil {
		return err
	}
	if v.isMaster() {
		return fmt.Errorf("node %s is a master already", replica.Addr())
	}
	for {
		err := c.tryFailover(ctx, node)
		if !errors.Is(err, errRefused) || ctx.Err() != nil {
			return err
		}
	}
}

// tryFailover asks the replica once.
func (c *ClusterServers) tryFailover(ctx context.Context, node *clusterNode) error {
	if err := c.lockSlotsToElect(ctx, node); err != nil {
		return err
	}
	defer c.unlockSlots()
	if views, _ := c.views(ctx); checkKnown(views, node) == nil {
		return nil // as it was asked to before
	}
	if err := c.waitInformed(ctx, node); err != nil {
		return err
	}
	if err := node.admin.ClusterFailover(ctx).Err(); err != nil {
		return fmt.Errorf("CLUSTER FAILOVER on %s: %w", node.Addr(), err)
	}
	node.election.begin()
	ctx, cancel := context.WithTimeout(ctx, failoverTime)
	defer cancel()
	err := poll(ctx, func(ctx context.Context) error {
		views, _ := c.views(ctx)
		return checkKnown(views, node)
	})
	if err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return nil
}

// lockSlotsToElect takes the lock when the votes of the node's last election have
// expired. Redis 7.0 counts them again: a replica that was elected less than two
// node timeouts ago takes over without asking anybody, gets undone, and clients
// lose what they wrote to it. In the two after, it does nothing.
func (c *ClusterServers) lockSlotsToElect(ctx context.Context, node *clusterNode) error {
	for {
		if err := retry.Sleep(ctx, node.election.left(c.votesExpire)); err != nil {
			return err
		}
		if err := c.lockSlots(ctx); err != nil {
			return err
		}
		if node.election.left(c.votesExpire) <= 0 {
			return nil
		}
		c.unlockSlots()
	}
}

// waitInformed waits until the replica and the others know each other's roles
// and slots. A master ignores a replica that it does not know to be its own, and
// the masters do not vote for one that claims slots which are another's.
func (c *ClusterServers) waitInformed(ctx context.Context, replica *clusterNode) error {
	ctx, cancel := context.WithTimeout(ctx, informedTime)
	defer cancel()
	return poll(ctx, func(ctx context.Context) error {
		views, err := c.views(ctx)
		i := slices.IndexFunc(views, func(v *view) bool { return v.node == replica })
		if i < 0 {
			return err
		}
		for _, v := range views {
			if err := v.checkSees(views[i].self()); err != nil {
				return err
			}
		}
		return views[i].checkAgrees(views)
	})
}

// WaitTakeover waits until the slot has another master than the given one, which
// was stopped or paused, and the other nodes that answer know that. It returns
// the new master. A master that is started again before is the master still, but
// without the data that the arguments do not have it save.
//
// This takes the node timeout and about a second more. A majority of the masters
// must run: a cluster of one master or two has no failover after a crash.
func (c *ClusterServers) WaitTakeover(ctx context.Context, slot int, from *Server) (*Server, error) {
	old, err := c.node(from)
	if err != nil {
		return nil, err
	}
	var master *clusterNode
	err = poll(ctx, func(ctx context.Context) error {
		views, err := c.views(ctx, old)
		master = ownerOf(views, slot)
		if master == nil {
			return errors.Join(fmt.Errorf("no other node than %s is the master of slot %d", from.Addr(), slot), err)
		}
		return checkKnown(views, master)
	})
	if err != nil {
		return nil, err
	}
	return master.Server, nil
}

// checkKnown succeeds when all these nodes, of which the master is one, know its
// role and its latest claim to slots.
func checkKnown(views []*view, master *clusterNode) error {
	i := slices.IndexFunc(views, func(v *view) bool { return v.node == master })
	if i < 0 {
		return fmt.Errorf("node %s does not answer", master.Addr())
	}
	self := views[i].self()
	for _, v := range views {
		if seen := v.members[self.id]; seen.master != noMaster || seen.epoch != self.epoch {
			return fmt.Errorf("node %s does not know that %s is a master", v.node.Addr(), master.Addr())
		}
	}
	return nil
}

// election remembers when a node last wanted to become a master.
type election struct {
	mu       sync.Mutex
	isMaster bool
	last     time.Time
}

func (e *election) begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last = time.Now()
}

// observe is told what the node is. It may have become a master since it was
// observed before.
func (e *election) observe(isMaster bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if isMaster && !e.isMaster {
		e.last = time.Now()
	}
	e.isMaster = isMaster
}

// left returns what is left of the time since the election.
func (e *election) left(limit time.Duration) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return limit - time.Since(e.last)
}
