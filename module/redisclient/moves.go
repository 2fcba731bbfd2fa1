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
// A master that does not reply must not break the users of other masters. A lost master
// is left out. Any other silent master is left out, too, unless a slot moves or has keys
// elsewhere, or slots have got other masters within settleTime. So an interrupted move is
// not found while the master that has the keys is lost, or silent for long.
//
// It is safe for concurrent use.
type moves struct {
	cluster  *redis.ClusterClient // nil for other clients
	observer observe.Observer
	silences *silences

	mu      sync.Mutex
	latest  *lookup
	version string    // of the last shape
	changed time.Time // when it last changed
	alone   aloneSlots
	strays  map[int]bool    // slots with keys on a master that does not serve them
	skipped map[string]bool // ids of masters that were reported as skipped
}

// newMoves returns the moves of the cluster behind client. Other clients have none.
func newMoves(client redis.UniversalClient, observer observe.Observer) *moves {
	cluster, _ := client.(*redis.ClusterClient)
	return &moves{
		cluster: cluster, observer: observer, silences: newSilences(),
		strays: map[int]bool{}, skipped: map[string]bool{},
	}
}

const (
	shapeAge = time.Second

	// settleTime is longer than it takes the cluster to replace a master that failed at
	// the same time as another one.
	settleTime = 10 * time.Second

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
// lacks. Replied is nil if the node is not known.
func (m *moves) elsewhere(ctx context.Context, key string, replied *redis.Client) error {
	if m.cluster == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	slot, now := SlotOf(key), time.Now()
	s, err := m.shape(ctx, now.Add(-shapeAge), false)
	if err == nil && !s.isOpen(slot) && !s.isServedBy(slot, replied) {
		s, err = m.shape(ctx, now, true) // the slot may have another master now
	}
	if err != nil {
		return fmt.Errorf("cannot tell whether another master has the key: %w", err)
	}
	isMoving := s.isOpen(slot) || !s.isServedBy(slot, replied)
	if !isMoving && m.isAlone(ctx, s, slot) {
		return nil
	}
	return m.search(ctx, s, key, isMoving || m.isStray(slot) || s.isNew())
}

// lookup asks for the shape once, for all callers that wait for it.
type lookup struct {
	began time.Time
	waits bool          // for silent masters
	done  chan struct{} // closed when shape and err are set
	shape *shape
	err   error
}

// shape returns the shape of a lookup that began at since or later. The lookup waits for
// silent masters if wait is set, at first, and while slots get other masters.
func (m *moves) shape(ctx context.Context, since time.Time, wait bool) (*shape, error) {
	m.mu.Lock()
	l := m.latest
	if l == nil || l.began.Before(since) || wait && !l.waits {
		l = &lookup{began: time.Now(), waits: wait || m.version == "" || time.Since(m.changed) < settleTime, done: make(chan struct{})}
		m.latest = l
		// The lookup serves all callers, so the end of a single caller's context must not end
		// it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), searchTimeout)
		go func() {
			defer cancel()
			defer close(l.done)
			if l.shape, l.err = newShape(ctx, m.cluster, m.silences, l.waits); l.err == nil {
				m.remember(l.shape)
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

// remember compares a shape with the last one.
func (m *moves) remember(s *shape) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.version != "" && m.version != s.version {
		m.changed = time.Now()
	}
	m.version, s.changed = s.version, m.changed
	if !m.alone.isFor(s) || time.Since(m.alone.since) > aloneAge {
		m.alone = aloneSlots{version: s.version, replied: s.replied, since: time.Now()}
	}
	for _, other := range s.masters {
		if other.silence == nil {
			delete(m.skipped, other.id)
		}
	}
}

// aloneSlots are the slots whose keys are on no other master than the slot's own, as far
// as masters have replied.
type aloneSlots struct {
	version string // of the shape
	replied string // see shape
	since   time.Time
	slots   [slots]bool
}

func (a *aloneSlots) isFor(s *shape) bool { return a.version == s.version && a.replied == s.replied }

// isAlone reports whether no other master has keys of a slot. It asks about a whole
// block of slots and remembers the replies, so the other slots of the block cost no
// request.
func (m *moves) isAlone(ctx context.Context, s *shape, slot int) bool {
	m.mu.Lock()
	since := m.alone.since
	found := m.alone.isFor(s) && m.alone.slots[slot]
	m.mu.Unlock()
	if found {
		return true
	}
	first := slot / slotBlock * slotBlock
	elsewhere, complete, err := m.slotsElsewhere(ctx, s, first)
	if err != nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := first; i < first+slotBlock; i++ {
		switch isElsewhere := slices.Contains(elsewhere, i); {
		case isElsewhere:
			m.strays[i] = true
		case complete:
			delete(m.strays, i)
		}
		if m.alone.isFor(s) && m.alone.since == since {
			m.alone.slots[i] = !m.strays[i]
		}
	}
	return !m.strays[slot]
}

func (m *moves) isStray(slot int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.strays[slot]
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
func (m *moves) slotsElsewhere(ctx context.Context, s *shape, first int) (all []int, complete bool, err error) {
	var mu sync.Mutex
	last := first + slotBlock - 1
	complete, err = m.ask(ctx, s, s.isNew(), func(ctx context.Context, master *master, client *redis.Client) error {
		if master.servesAll(first, last) {
			return nil
		}
		found, err := client.Eval(ctx, slotsScript, nil, first, last).Int64Slice()
		mu.Lock()
		defer mu.Unlock()
		for _, slot := range found {
			if !master.serves(int(slot)) {
				all = append(all, int(slot))
			}
		}
		return err
	})
	return all, complete, err
}

// isNew reports whether slots have moved or got another master lately, as far as this
// host knows.
func (s *shape) isNew() bool { return time.Since(s.changed) < settleTime }

// ask calls do concurrently for each master, except lost masters. If wait is not set, it
// also leaves out silent masters. Complete is false if it left out any master but lost
// ones.
func (m *moves) ask(
	ctx context.Context, s *shape, wait bool, do func(context.Context, *master, *redis.Client) error,
) (complete bool, err error) {
	limit := searchTimeout
	if !wait {
		limit /= 2
	}
	var mu sync.Mutex
	var errs []error
	complete = true
	var asking sync.WaitGroup
	for _, master := range s.masters {
		asking.Go(func() {
			err := master.silence
			if err == nil {
				err = s.reach(ctx, limit, master, func(ctx context.Context, client *redis.Client) error { return do(ctx, master, client) })
				if lacksReply(err) && !wait && ctx.Err() == nil {
					m.silences.set(master, err)
				}
			}
			if err == nil {
				return
			}
			err = fmt.Errorf("the Redis at %s: %w", master.addresses[0], err)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case master.isLost():
				m.skip(master, err)
			case !wait && lacksReply(err) && ctx.Err() == nil:
				m.skip(master, err)
				complete = false
			default:
				errs = append(errs, err)
			}
		})
	}
	asking.Wait()
	return complete, errors.Join(errs...)
}

// skip reports a master that was left out, once until it replies again.
func (m *moves) skip(master *master, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.skipped[master.id] {
		m.skipped[master.id] = true
		m.observer.Report(observe.MasterSkipped, err)
	}
}

// search asks the masters for a key; see [moves.ask].
func (m *moves) search(ctx context.Context, s *shape, key string, wait bool) error {
	var mu sync.Mutex
	var holder *master
	isServed := false
	_, err := m.ask(ctx, s, wait, func(ctx context.Context, master *master, client *redis.Client) error {
		serves, holds, err := askForKey(ctx, client, key)
		mu.Lock()
		defer mu.Unlock()
		isServed = isServed || serves
		if holds {
			holder = master
		}
		return err
	})
	mayBeLost := slices.ContainsFunc(s.masters, func(other *master) bool { return other.isLost() && other.serves(SlotOf(key)) })
	switch {
	case holder != nil:
		return fmt.Errorf("%w: the Redis at %s", ErrOtherMaster, holder.addresses[0])
	case err != nil:
		return fmt.Errorf("cannot tell whether another master has the key: %w", err)
	case !isServed || mayBeLost:
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
