package redisclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// moves finds keys that an interrupted move of their slot has left on another master of
// a cluster.
//
// This can happen when the source of a slot's move dies. The replica that takes over
// does not know of the move and replies that the key is missing. The target has the key
// but does not serve it. Creating the value again would replace the user's stored value.
//
// A reply that a key is missing is final if two things hold: it comes from the master
// that owns the slot according to the cluster's [shape], and no other master had keys
// of the slot when last asked. A move that begins later cannot hide a key, because its
// source knows of it, and a replica that replaces the source is not the owner in the
// shape. A shape is used for shapeAge. So one danger is left: within shapeAge, a slot's
// move begins, and a person fails its master over to a replica and back.
//
// It is safe for concurrent use.
type moves struct {
	cluster *redis.ClusterClient // nil for other clients

	mu     sync.Mutex
	latest *lookup
	alone  aloneSlots
}

// newMoves returns the moves of the cluster behind client. Other clients have none.
func newMoves(client redis.UniversalClient) *moves {
	cluster, _ := client.(*redis.ClusterClient)
	return &moves{cluster: cluster}
}

const (
	shapeAge = time.Second

	// aloneAge is how long aloneSlots are used while the cluster keeps its shape. It
	// bounds the effect of a move that a person ends by force.
	aloneAge = time.Minute

	// searchTimeout leaves a request time to try again.
	searchTimeout = 2 * time.Second
)

// ErrOtherMaster means that a master has a key but does not serve it. The error of the
// key wraps it.
var ErrOtherMaster = errors.New("another master has the key, since a move of its slot was interrupted")

// elsewhere returns an error if a master may have a key which the node that replied
// lacks. A master that does not reply may have the key, unless the cluster has replaced
// it. Replied is nil if the node is not known.
func (m *moves) elsewhere(ctx context.Context, key string, replied *redis.Client) error {
	if m.cluster == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	slot, now := SlotOf(key), time.Now()
	s, err := m.shape(ctx, now.Add(-shapeAge))
	if err == nil && !s.isOpen(slot) && !s.isServedBy(slot, replied) {
		s, err = m.shape(ctx, now) // the slot may have another master now
	}
	switch {
	case err != nil:
		return fmt.Errorf("cannot tell whether another master has the key: %w", err)
	case s.isOpen(slot), !s.isServedBy(slot, replied), !m.isAlone(ctx, s, slot):
		return s.search(ctx, key)
	}
	return nil
}

// lookup asks for the shape once, for all callers that wait for it.
type lookup struct {
	began time.Time
	done  chan struct{} // closed when shape and err are set
	shape *shape
	err   error
}

// shape returns the shape of a lookup that began at since or later.
func (m *moves) shape(ctx context.Context, since time.Time) (*shape, error) {
	m.mu.Lock()
	l := m.latest
	if l == nil || l.began.Before(since) {
		l = &lookup{began: time.Now(), done: make(chan struct{})}
		m.latest = l
		// The lookup serves all callers, so the end of a single caller's context must not end
		// it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), searchTimeout)
		go func() {
			defer cancel()
			defer close(l.done)
			if l.shape, l.err = newShape(ctx, m.cluster); l.err == nil {
				m.resetAlone(l.shape)
			}
		}()
	}
	m.mu.Unlock()
	select {
	case <-l.done:
		return l.shape, l.err
	case <-ctx.Done():
		return nil, fmt.Errorf("the cluster's masters do not reply: %w", ctx.Err())
	}
}

// aloneSlots are the slots whose keys are on no other master than the slot's own.
type aloneSlots struct {
	version string // of the shape
	since   time.Time
	slots   [slots]bool
}

// resetAlone forgets the slots of another shape, and old ones.
func (m *moves) resetAlone(s *shape) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.alone.version != s.version || time.Since(m.alone.since) > aloneAge {
		m.alone = aloneSlots{version: s.version, since: time.Now()}
	}
}

// isAlone reports whether no other master has keys of a slot. It asks about a whole
// block of slots and remembers the replies, so the other slots of the block cost no
// request.
func (m *moves) isAlone(ctx context.Context, s *shape, slot int) bool {
	m.mu.Lock()
	found, since := m.alone.version == s.version && m.alone.slots[slot], m.alone.since
	m.mu.Unlock()
	if found {
		return true
	}
	first := slot / slotBlock * slotBlock
	elsewhere, err := s.slotsElsewhere(ctx, first)
	if err != nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := first; i < first+slotBlock && m.alone.version == s.version && m.alone.since == since; i++ {
		m.alone.slots[i] = !slices.Contains(elsewhere, i)
	}
	return !slices.Contains(elsewhere, slot)
}

// slotBlock is how many slots a master is asked about at once, which takes it 0.4 ms.
const slotBlock = 128

// slotsScript returns the slots with keys on the server. ARGV: the first slot and the
// last one.
const slotsScript = `
local found = {}
for slot = tonumber(ARGV[1]), tonumber(ARGV[2]) do
	if #redis.call('CLUSTER', 'GETKEYSINSLOT', slot, 1) > 0 then found[#found + 1] = slot end
end
return found`

// slotsElsewhere returns the slots of a block with keys on a master that does not serve
// them.
func (s *shape) slotsElsewhere(ctx context.Context, first int) ([]int, error) {
	var mu sync.Mutex
	var all []int
	var errs []error
	last := first + slotBlock - 1
	s.each(func(m *master, client *redis.Client) {
		if m.servesAll(first, last) {
			return
		}
		found, err := client.Eval(ctx, slotsScript, nil, first, last).Int64Slice()
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
		for _, slot := range found {
			if !m.serves(int(slot)) {
				all = append(all, int(slot))
			}
		}
	})
	return all, errors.Join(errs...)
}

// search asks every master for a key.
func (s *shape) search(ctx context.Context, key string) error {
	var mu sync.Mutex
	var holder *master
	var silent error
	isServed := false
	s.each(func(m *master, client *redis.Client) {
		serves, holds, err := askForKey(ctx, client, key)
		mu.Lock()
		defer mu.Unlock()
		isServed = isServed || serves
		if holds {
			holder = m
		}
		if err != nil {
			silent = fmt.Errorf("the Redis at %s: %w", m.addresses[0], err)
		}
	})
	switch {
	case holder != nil:
		return fmt.Errorf("%w: the Redis at %s", ErrOtherMaster, holder.addresses[0])
	case silent != nil:
		return fmt.Errorf("cannot tell whether another master has the key: %w", silent)
	case !isServed:
		return errors.New("cannot tell whether another master has the key: no master serves its slot")
	}
	return nil
}

const maxSlotKeys = 10_000

// askForKey asks a master for a key, whether or not the master owns the slot. The owner
// and the target of a move reply to EXISTS; the source of a move replies ASK for a
// missing key. Other masters refuse, but CLUSTER GETKEYSINSLOT shows their keys.
func askForKey(ctx context.Context, client *redis.Client, key string) (serves, holds bool, err error) {
	var exists *redis.IntCmd
	_, _ = client.Pipelined(ctx, func(p redis.Pipeliner) error { // each command has its own error
		p.Do(ctx, "ASKING")
		exists = p.Exists(ctx, key)
		return nil
	})
	err = exists.Err()
	_, isAsk := redis.IsAskError(err)
	_, isMoved := redis.IsMovedError(err)
	switch {
	case err == nil, isAsk:
		return true, exists.Val() > 0, nil
	case !isMoved && !redis.HasErrorPrefix(err, "CLUSTERDOWN"):
		return false, false, err
	}
	keys, err := client.ClusterGetKeysInSlot(ctx, SlotOf(key), maxSlotKeys).Result()
	return false, slices.Contains(keys, key) || len(keys) == maxSlotKeys, err
}
