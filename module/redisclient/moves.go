package redisclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/retry"
)

// moves finds keys that an interrupted move of their slot has left on another node of a
// cluster.
//
// This can happen when the source of a slot's move dies. The replica that takes over
// does not know of the move and replies that the key is missing. The target has the key
// but does not serve it. Creating the value again would replace the user's stored value.
//
// So a reply that a key is missing is final only if no other node has the key. The other
// nodes are asked for a whole block of slots, and their replies are used for replyAge:
// a move that begins later cannot hide a key, because its source knows of it, and a
// replica that replaces the source is another node. So one danger is left: within
// replyAge, a slot's move begins, and a person fails its master over to a replica and
// back, or makes it forget the move.
//
// The replies are used for settledAge if the list of the nodes has not changed since. A
// failover, also one there and back, changes an epoch in it, and the node that replied
// lists the moves of its slots. It is asked for the list every replyAge: a gap of more
// than lookGap counts as a change. So the danger is the same, within lookGap. While one
// of the node's slots moves, or another node is silent, replies are used for replyAge.
//
// A master that does not reply must not break the users of other masters. Its replicas
// are asked instead. Without a reply from these, it is left out, unless it had keys of
// the slot. So an interrupted move is not found while the master that has the keys is
// lost, or if this master and its replicas are silent from the beginning.
//
// It is safe for concurrent use.
type moves struct {
	cluster  *redis.ClusterClient // nil for other clients
	silences *silences

	mu      sync.Mutex
	layouts map[string]*reply[*layout] // by the address of the node that replied
	blocks  map[block]*reply[*keys]
	skipped map[string]bool // masters that were reported, by id, until they reply
}

// newMoves returns the moves of the cluster behind client. Other clients have none.
func newMoves(client redis.UniversalClient, silences *silences) *moves {
	cluster, _ := client.(*redis.ClusterClient)
	return &moves{
		cluster: cluster, silences: silences,
		layouts: map[string]*reply[*layout]{}, blocks: map[block]*reply[*keys]{}, skipped: map[string]bool{},
	}
}

const (
	replyAge   = time.Second
	settledAge = 30 * time.Second
	lookGap    = 2 * replyAge

	// searchTimeout leaves a request time to try again.
	searchTimeout = 3 * time.Second

	// slotBlock is how many slots a node is asked about at once, which takes it 0.2 ms.
	slotBlock = 128

	maxSlotKeys = 10_000
)

// layout is what a node knows of its cluster.
type layout struct {
	own    string                   // the node's id
	others []*listed                // all other nodes
	state  string                   // of all nodes
	moving bool                     // one of the node's slots
	asked  time.Time                // before the nodes were
	since  time.Time                // when the state was first seen
	known  map[string]*redis.Client // see clientsOf
}

// block is slotBlock slots, as seen from the node that replied.
type block struct {
	replied string // its address
	first   int
}

// keys says which other nodes have keys of the slots of a block.
type keys struct {
	asked   time.Time         // before the nodes were
	settled bool              // no slot moved, and all nodes replied
	nodes   map[int][]*listed // by slot
}

// ErrOtherMaster means that a master has a key but does not serve it. The error of the
// key wraps it.
var ErrOtherMaster = errors.New("another master has the key, since a move of its slot was interrupted")

// elsewhere returns an error if another node may have a key which the node that replied
// lacks. Replied is nil if the node is not known.
func (m *moves) elsewhere(ctx context.Context, key string, replied *redis.Client) error {
	if m.cluster == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	holder, err := m.holder(ctx, key, replied)
	switch {
	case err != nil:
		return fmt.Errorf("cannot tell whether another master has the key: %w", err)
	case holder != nil:
		return fmt.Errorf("%w: the Redis at %s", ErrOtherMaster, holder.addresses[0])
	}
	return nil
}

// holder returns another node that has a key, or nil.
func (m *moves) holder(ctx context.Context, key string, replied *redis.Client) (*listed, error) {
	if replied == nil {
		var err error
		if replied, err = m.cluster.MasterForKey(ctx, key); err != nil {
			return nil, err
		}
	}
	slot := SlotOf(key)
	in := block{replied.Options().Addr, slot / slotBlock * slotBlock}
	l, err := share(ctx, m, m.layouts, in.replied, func(*layout) bool { return false },
		func(ctx context.Context, last *layout) (*layout, error) { return m.layoutFrom(ctx, in.replied, last) })
	if err != nil {
		return nil, err
	}
	found, err := share(ctx, m, m.blocks, in, func(k *keys) bool { return k.settled && !k.asked.Before(l.since) },
		func(ctx context.Context, last *keys) (*keys, error) { return m.ask(ctx, l, in, last) })
	if err != nil {
		return nil, err
	}
	for _, n := range found.nodes[slot] {
		var keys []string
		err := m.reach(ctx, l, n, func(ctx context.Context, client *redis.Client) (err error) {
			keys, err = client.ClusterGetKeysInSlot(ctx, slot, maxSlotKeys).Result()
			return err
		})
		if err != nil || slices.Contains(keys, key) || len(keys) == maxSlotKeys {
			return n, err
		}
	}
	return nil, nil
}

// reply is a result for all callers that need it within replyAge, or within settledAge
// while it holds.
type reply[T any] struct {
	began time.Time
	done  chan struct{} // closed when value and err are set
	value T             // after an error, of the last result
	err   error
}

// share returns a result of do that began within replyAge, or within settledAge if it
// holds. Do gets the last one.
func share[K comparable, T any](
	ctx context.Context, m *moves, all map[K]*reply[T], key K, holds func(T) bool, do func(ctx context.Context, last T) (T, error),
) (value T, err error) {
	m.mu.Lock()
	r, found := all[key]
	if !found || r.isOver(holds) {
		var last T
		if found {
			last = r.value
		}
		r = &reply[T]{began: time.Now(), done: make(chan struct{}), value: last}
		all[key] = r
		// The result is for all callers, so the end of a single caller's context must not
		// end it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), searchTimeout)
		go func() {
			defer cancel()
			defer close(r.done)
			if value, err := do(ctx, last); err != nil {
				r.err = err
			} else {
				r.value = value
			}
		}()
	}
	m.mu.Unlock()
	select {
	case <-r.done:
		return r.value, r.err
	case <-ctx.Done():
		return value, fmt.Errorf("the cluster's nodes do not reply: %w", ctx.Err())
	}
}

// isOver reports whether a result is too old, or an error.
func (r *reply[T]) isOver(holds func(T) bool) bool {
	select {
	case <-r.done:
		age := time.Since(r.began)
		return r.err != nil || age > settledAge || age > replyAge && !holds(r.value)
	default:
		return false
	}
}

// slotsScript returns the slots with keys on the server. ARGV: the first slot and the
// last one.
const slotsScript = `
local found, call = {}, redis.call
for slot = ARGV[1], ARGV[2] do
	if call('CLUSTER', 'GETKEYSINSLOT', slot, 1)[1] then found[#found + 1] = slot end
end
return found`

// ask asks all other masters for the keys of a block, and the replicas of silent and
// failed ones. A silent node counts as having the keys that it had.
func (m *moves) ask(ctx context.Context, l *layout, in block, last *keys) (*keys, error) {
	found := &keys{asked: time.Now(), settled: !l.moving, nodes: map[int][]*listed{}}
	var mu sync.Mutex
	var denied error
	replied := map[string]bool{l.own: true}
	askIf := func(isAsked func(*listed) bool) {
		var asking sync.WaitGroup
		for _, n := range slices.DeleteFunc(slices.Clone(l.others), func(n *listed) bool { return n.is("fail") || !isAsked(n) }) {
			asking.Go(func() {
				var slots []int64
				err := m.reach(ctx, l, n, func(ctx context.Context, client *redis.Client) (err error) {
					slots, err = client.Eval(ctx, slotsScript, nil, in.first, in.first+slotBlock-1).Int64Slice()
					return err
				})
				mu.Lock()
				defer mu.Unlock()
				if redis.HasErrorPrefix(err, "NOPERM") {
					denied = fmt.Errorf("the Redis at %s: %w", n.addresses[0], err)
				}
				replied[n.id] = err == nil
				found.settled = found.settled && err == nil
				if err != nil && last != nil {
					slots = last.of(n)
				}
				for _, slot := range slots {
					found.nodes[int(slot)] = append(found.nodes[int(slot)], n)
				}
			})
		}
		asking.Wait()
	}
	askIf(func(n *listed) bool { return n.is("master") })
	askIf(func(n *listed) bool { return n.is("slave") && !replied[n.master] })
	return found, denied
}

func (k *keys) of(n *listed) (slots []int64) {
	for slot, nodes := range k.nodes {
		if slices.ContainsFunc(nodes, func(other *listed) bool { return other.id == n.id }) {
			slots = append(slots, int64(slot))
		}
	}
	return slots
}

// layoutFrom returns the nodes that the node at an address lists, and another one, which
// may know of later masters: after a restart, a node may list a master from before a
// failover.
func (m *moves) layoutFrom(ctx context.Context, address string, last *layout) (*layout, error) {
	asked := time.Now()
	l := &layout{asked: asked, since: asked}
	if last != nil && m.silences.hasAny() { // the cluster client may ask the silent node for the others
		l.known = last.known
	} else {
		l.known = clientsOf(ctx, m.cluster.ForEachShard)
	}
	list := func(n *listed) (nodes []*listed, err error) {
		err = m.reach(ctx, l, n, func(ctx context.Context, client *redis.Client) error {
			text, err := client.ClusterNodes(ctx).Result()
			nodes = readNodes(text)
			return err
		})
		return nodes, err
	}
	nodes, err := list(&listed{addresses: []string{address}})
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(nodes, func(n *listed) bool { return n.is("myself") }); i >= 0 {
		l.own, l.moving = nodes[i].id, nodes[i].isMoving
	}
	for _, n := range nodes {
		if n.id == l.own || n.is("fail") {
			continue
		}
		if others, err := list(n); err == nil {
			nodes = union(nodes, others)
			break
		}
	}
	for _, n := range nodes {
		l.state += n.state + "\n"
	}
	if last != nil && l.state == last.state && asked.Sub(last.asked) <= lookGap {
		l.since = last.since
	}
	l.others = slices.DeleteFunc(nodes, func(n *listed) bool { return n.id == l.own })
	for _, n := range l.others {
		if n.is("fail") && n.hasSlots {
			m.skip(n, fmt.Errorf("the Redis at %s: the cluster has declared it failed", n.addresses[0]))
		}
	}
	return l, nil
}

// reach calls do with a client of a node, unless the node is silent. Its errors name the node.
func (m *moves) reach(ctx context.Context, l *layout, n *listed, do func(context.Context, *redis.Client) error) error {
	err := reach(ctx, m.cluster.Options(), l.known, n, func(ctx context.Context, client *redis.Client) error {
		if m.silences.isSilent(client) {
			return retry.ErrSilent
		}
		f := m.silences.begin(client.Options().Addr, 0)
		err := do(ctx, client)
		f.end(err)
		return err
	})
	if !lacksReply(err) {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.skipped, n.id)
		return err
	}
	err = fmt.Errorf("the Redis at %s: %w", n.addresses[0], err)
	if ctx.Err() == nil && !isTimeout(err) && !errors.Is(err, retry.ErrSilent) { // silences report the others
		m.skip(n, err)
	}
	return err
}

// skip reports a master that is left out, once until it replies again.
func (m *moves) skip(n *listed, err error) {
	m.mu.Lock()
	wasSkipped := m.skipped[n.id]
	m.skipped[n.id] = true
	m.mu.Unlock()
	if !wasSkipped && n.is("master") {
		m.silences.observer.Report(observe.MasterSkipped, err)
	}
}
