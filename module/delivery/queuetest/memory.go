package queuetest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
)

var _ module.DeliveryQueue = (*Memory)(nil)

// Memory is a [module.DeliveryQueue] in memory, for tests. Hosts may share it. It is safe
// for concurrent use. Its clock is [time.Now].
type Memory struct {
	mu     sync.Mutex
	shards int
	data   map[int]*memoryShard
	held   map[string]bool
	token  int64
	calls  int

	// Fail is called before each operation, unless it is nil. Its error fails the operation.
	Fail func(operation string) error
}

type memoryShard struct {
	backlogs map[string]*memoryBacklog
	seen     map[string]time.Time // until when
	bytes    map[string]int
	sent     map[string]string
	fanOut   int // bytes of the backlogs of large events
}

func isFanOut(target string) bool { return module.Target{Name: target}.IsFanOut() }

// release subtracts the bytes of an entry from the counts.
func (s *memoryShard) release(target string, e memoryEntry) {
	s.bytes[e.user] -= e.counted
	if isFanOut(target) {
		s.fanOut -= e.counted
	}
}

type memoryBacklog struct {
	gate    string
	entries []memoryEntry
	token   int64 // 0 without a claim
	due     time.Time
	trouble module.Trouble
	from    int // in a fan-out, the first recipient of the first event that is not yet added
}

type memoryEntry struct {
	module.Notification
	user    string
	counted int
	added   time.Time
}

// NewMemory returns an empty queue.
func NewMemory() *Memory { return &Memory{data: map[int]*memoryShard{}, held: map[string]bool{}} }

func (m *Memory) begin(ctx context.Context, operation string) error {
	if err := ctx.Err(); err != nil {
		return module.Unavailable(err)
	}
	if m.Fail != nil {
		if err := m.Fail(operation); err != nil {
			return module.Unavailable(err)
		}
	}
	m.mu.Lock()
	m.calls++
	return nil
}

func (m *Memory) shard(n int) *memoryShard {
	s := m.data[n]
	if s == nil {
		s = &memoryShard{backlogs: map[string]*memoryBacklog{}, seen: map[string]time.Time{}, bytes: map[string]int{}, sent: map[string]string{}}
		m.data[n] = s
	}
	return s
}

// Calls returns how many operations there were.
func (m *Memory) Calls() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls
}

// Waiting returns how many notifications there are.
func (m *Memory) Waiting() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.data {
		for _, b := range s.backlogs {
			n += len(b.entries)
		}
	}
	return n
}

// TextBytes returns the size of all stored texts.
func (m *Memory) TextBytes() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.data {
		for _, b := range s.backlogs {
			for _, e := range b.entries {
				n += len(e.Text)
			}
		}
	}
	return n
}

// Hold holds or opens a gateway.
func (m *Memory) Hold(gateway string, held bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held[gateway] = held
}

// Open implements [module.DeliveryQueue].
func (m *Memory) Open(ctx context.Context, shards int) error {
	if err := m.begin(ctx, "open"); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if m.shards != 0 && m.shards != shards {
		return fmt.Errorf("queuetest: it has %d shards", m.shards)
	}
	m.shards = shards
	return nil
}

// Enqueue implements [module.DeliveryQueue].
func (m *Memory) Enqueue(ctx context.Context, batches []module.DeliveryBatch) []module.Result[module.Enqueued] {
	results := make([]module.Result[module.Enqueued], len(batches))
	for i, b := range batches {
		if results[i].Err = m.begin(ctx, "enqueue"); results[i].Err == nil {
			results[i].Value, results[i].Err = m.add(b)
			m.mu.Unlock()
		}
	}
	return results
}

func (m *Memory) add(b module.DeliveryBatch) (module.Enqueued, error) {
	if len(b.Additions) > module.MaxAdditions {
		return module.Enqueued{}, fmt.Errorf("queuetest: a batch of %d", len(b.Additions))
	}
	s, now := m.shard(b.Shard), time.Now()
	again := module.Enqueued{Again: true, Claims: make([]module.Claim, len(b.Additions))}
	if b.Of.Token != 0 {
		of := s.backlogs[b.Of.Target.Name]
		switch {
		case of == nil || of.token != b.Of.Token:
			return module.Enqueued{}, module.ErrFenced
		case of.from == b.To && b.From != b.To:
			return again, nil
		case of.from != b.From:
			return module.Enqueued{}, module.ErrFenced
		}
		of.from = b.To
	} else {
		if s.seen[b.Key].After(now) {
			return again, nil
		}
		ahead, first := s.backlogs[module.FanOut+b.Room], b.Additions[0]
		if isFanOut(first.Target) {
			room, all, n := s.bytes[first.User], s.fanOut, len(first.Notification.Text)
			if room+n > b.MaxRoomBytes || all+n > b.MaxShardBytes && (ahead != nil || all+n > 2*b.MaxShardBytes) {
				return module.Enqueued{Full: true}, nil
			}
		} else if ahead != nil && b.Room != "" {
			return module.Enqueued{Behind: true}, nil
		}
		s.seen[b.Key] = now.Add(b.Window)
	}
	e := module.Enqueued{}
	for _, a := range b.Additions {
		e.Claims = append(e.Claims, m.addOne(s, b, a, now, &e.Coalesced))
	}
	if b.Of.Token != 0 {
		for _, other := range s.backlogs {
			isAdded := slices.ContainsFunc(b.Additions, func(a module.Addition) bool { return a.Gate == other.gate })
			if isAdded && !other.due.After(now) {
				e.Due++
			}
		}
	}
	return e, nil
}

func (m *Memory) addOne(s *memoryShard, batch module.DeliveryBatch, a module.Addition, now time.Time, coalesced *int) (c module.Claim) {
	b := s.backlogs[a.Target]
	begins := b == nil
	if begins {
		b = &memoryBacklog{gate: a.Gate}
		s.backlogs[a.Target] = b
	} else if last := len(b.entries) - 1; b.entries[last].Priority == module.CountsOnly && (last > 0 || b.token == 0) {
		if a.Notification.Priority == module.CountsOnly {
			return c
		}
		b.entries = b.entries[:last]
		begins = last == 0 && b.trouble == (module.Trouble{})
	}
	entry := memoryEntry{Notification: a.Notification, user: a.User, added: now}
	if isFanOut(a.Target) {
		entry.counted = len(a.Notification.Text)
		s.bytes[a.User] += entry.counted
		s.fanOut += entry.counted
	} else if !begins {
		if n := len(a.Notification.Text); s.bytes[a.User]+n > batch.MaxUserBytes {
			entry.Text = ""
		} else {
			entry.counted = n
			s.bytes[a.User] += n
		}
	}
	b.entries = append(b.entries, entry)
	isNew := b.trouble != (module.Trouble{}) && b.trouble.Generation < a.Generation
	if begins || b.token == 0 {
		b.gate = a.Gate
	}
	switch {
	case begins && a.Claim:
		c = m.claim(batch.Shard, a.Target, b, now.Add(batch.Lease))
	case begins:
		b.due = now.Add(a.Delay)
	case b.token == 0 && b.due.After(now) && (isNew || a.Urgent):
		b.due = now
		if isNew {
			b.trouble = module.Trouble{}
		}
	}
	if limit := batch.MaxBacklog; !isFanOut(a.Target) && len(b.entries) > limit+limit/5 {
		*coalesced += s.trim(b, limit, now.Add(-batch.KeepFor))
	}
	return c
}

// trim selects the least important notifications above the limit, but never the first
// two. It drops the selected ones from before a time or, far above the limit, all of them.
func (s *memoryShard) trim(b *memoryBacklog, limit int, before time.Time) (dropped int) {
	if len(b.entries) > 10*limit {
		before = time.Now()
	}
	if !slices.ContainsFunc(b.entries, func(e memoryEntry) bool { return !e.added.After(before) }) {
		return 0
	}
	chosen, rooms := map[string]bool{}, map[string]int{}
	for _, e := range b.entries[2:] {
		rooms[e.Room]++
	}
	rank := map[module.Priority]int{module.CountsOnly: 1 << 20, module.LowPriority: 1 << 10}
	for len(b.entries)-len(chosen) > limit {
		var worst *memoryEntry
		for i := 2; i < len(b.entries); i++ {
			e := &b.entries[i]
			if chosen[e.ID] {
				continue
			}
			if worst == nil || rank[e.Priority] > rank[worst.Priority] ||
				rank[e.Priority]+rank[worst.Priority] == 0 && rooms[e.Room] > rooms[worst.Room] {
				worst = e
			}
		}
		chosen[worst.ID] = true
		rooms[worst.Room]--
	}
	b.entries = slices.DeleteFunc(b.entries, func(e memoryEntry) bool {
		drop := chosen[e.ID] && !e.added.After(before)
		if drop {
			s.bytes[e.user] -= e.counted
			dropped++
		}
		return drop
	})
	return dropped
}

func (m *Memory) claim(shard int, name string, b *memoryBacklog, until time.Time) module.Claim {
	m.token++
	b.token, b.due = m.token, until
	return b.view(shard, name).Claim
}

// Claim implements [module.DeliveryQueue].
func (m *Memory) Claim(ctx context.Context, look module.Look) (claimed module.Claimed, err error) {
	if err := m.begin(ctx, "claim"); err != nil {
		return claimed, err
	}
	defer m.mu.Unlock()
	now := time.Now()
	type share struct {
		most, left int
		isClosed   bool
	}
	gates := map[string]*share{}
	for _, b := range m.due(now) {
		gate, shard := b.Claim.Gate, b.Claim.Target.Shard
		of := gates[gate]
		if of == nil {
			most, isClosed := look.Gate(gate)
			of = &share{most, most, isClosed}
			gates[gate] = of
		}
		if of.most <= 0 || look.Shards != nil && !slices.Contains(look.Shards, shard) {
			continue
		}
		isFull := of.left == 0 || len(claimed.Backlogs) == look.Limit
		if !of.isClosed {
			claimed.Oldest = max(claimed.Oldest, now.Sub(b.Due))
			if isFull {
				claimed.More = append(claimed.More, shard)
			}
		}
		if isFull {
			continue
		}
		of.left--
		b.Due, b.Waiting = now.Add(look.Lease), 0
		t := b.Claim.Target
		b.Claim = m.claim(t.Shard, t.Name, m.data[t.Shard].backlogs[t.Name], b.Due)
		claimed.Backlogs = append(claimed.Backlogs, b)
	}
	return claimed, nil
}

// due returns the due backlogs of all shards, in the order of their due times.
func (m *Memory) due(now time.Time) (due []module.Backlog) {
	for shard, s := range m.data {
		for name, b := range s.backlogs {
			if !b.due.After(now) {
				due = append(due, b.view(shard, name))
			}
		}
	}
	slices.SortFunc(due, func(a, b module.Backlog) int {
		return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.Claim.Target.Name, b.Claim.Target.Name))
	})
	return due
}

func (b *memoryBacklog) view(shard int, name string) module.Backlog {
	first := b.entries[0].Notification
	first.Text = ""
	return module.Backlog{
		Claim:   module.Claim{Target: module.Target{Shard: shard, Name: name}, Gate: b.gate, Token: b.token, First: first.ID},
		Waiting: len(b.entries), First: first, Trouble: b.trouble, From: b.from, Due: b.due,
	}
}

// of returns a claimed backlog; without an error, the caller unlocks the queue.
func (m *Memory) of(ctx context.Context, operation string, c module.Claim) (*memoryBacklog, error) {
	if err := m.begin(ctx, operation); err != nil {
		return nil, err
	}
	b := m.shard(c.Target.Shard).backlogs[c.Target.Name]
	if b == nil || b.token != c.Token || c.Token == 0 {
		m.mu.Unlock()
		return nil, module.ErrFenced
	}
	return b, nil
}

// Read implements [module.DeliveryQueue].
func (m *Memory) Read(ctx context.Context, c module.Claim, limit int) (all []module.Notification, err error) {
	if err := m.begin(ctx, "read"); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	if b := m.shard(c.Target.Shard).backlogs[c.Target.Name]; b != nil {
		for _, e := range b.entries[:min(limit, len(b.entries))] {
			all = append(all, e.Notification)
		}
	}
	return all, nil
}

// Complete implements [module.DeliveryQueue].
func (m *Memory) Complete(ctx context.Context, c module.Claim, id string, trouble module.Trouble, sent string) (left int, err error) {
	b, err := m.of(ctx, "complete", c)
	if err != nil {
		return 0, err
	}
	defer m.mu.Unlock()
	s := m.shard(c.Target.Shard)
	at := slices.IndexFunc(b.entries[:min(16, len(b.entries))], func(e memoryEntry) bool { return e.ID == id })
	if at >= 0 {
		s.release(c.Target.Name, b.entries[at])
		b.entries = slices.Delete(b.entries, at, at+1)
	}
	b.trouble, b.from = trouble, 0
	if sent != "" {
		s.sent[c.Target.Name] = sent
	}
	if len(b.entries) == 0 {
		delete(s.backlogs, c.Target.Name)
	}
	return len(b.entries), nil
}

// Sent implements [module.DeliveryQueue].
func (m *Memory) Sent(ctx context.Context, t module.Target) (string, error) {
	if err := m.begin(ctx, "sent"); err != nil {
		return "", err
	}
	defer m.mu.Unlock()
	return m.shard(t.Shard).sent[t.Name], nil
}

// Postpone implements [module.DeliveryQueue].
func (m *Memory) Postpone(ctx context.Context, c module.Claim, gate string, delay time.Duration, trouble *module.Trouble) error {
	b, err := m.of(ctx, "postpone", c)
	if err != nil {
		return err
	}
	defer m.mu.Unlock()
	b.gate, b.token, b.due = gate, 0, time.Now().Add(delay)
	if trouble != nil {
		b.trouble = *trouble
	}
	return nil
}

// Renew implements [module.DeliveryQueue].
func (m *Memory) Renew(ctx context.Context, c module.Claim, by time.Duration) (module.Claim, error) {
	b, err := m.of(ctx, "renew", c)
	if err != nil {
		return c, err
	}
	defer m.mu.Unlock()
	return m.claim(c.Target.Shard, c.Target.Name, b, b.due.Add(by)), nil
}

// Drop implements [module.DeliveryQueue].
func (m *Memory) Drop(ctx context.Context, c module.Claim) (dropped int, err error) {
	b, err := m.of(ctx, "drop", c)
	if err != nil {
		return 0, err
	}
	defer m.mu.Unlock()
	s := m.shard(c.Target.Shard)
	for _, e := range b.entries {
		s.release(c.Target.Name, e)
	}
	delete(s.backlogs, c.Target.Name)
	delete(s.sent, c.Target.Name)
	return len(b.entries), nil
}

// Backlogs implements [module.DeliveryQueue].
func (m *Memory) Backlogs(ctx context.Context, shard int, visit func(module.Backlog) bool) error {
	if err := m.begin(ctx, "backlogs"); err != nil {
		return err
	}
	s := m.shard(shard)
	var all []module.Backlog
	for _, name := range slices.Sorted(maps.Keys(s.backlogs)) {
		all = append(all, s.backlogs[name].view(shard, name))
	}
	m.mu.Unlock()
	for _, b := range all {
		if !visit(b) {
			break
		}
	}
	return nil
}

// HeldGateways implements [module.DeliveryQueue].
func (m *Memory) HeldGateways(ctx context.Context) (names []string, err error) {
	if err := m.begin(ctx, "held"); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	for name, held := range m.held {
		if held {
			names = append(names, name)
		}
	}
	return names, nil
}

// Summary implements [module.DeliveryQueue].
func (m *Memory) Summary(ctx context.Context, isAlone func(module.Trouble) bool) (s module.QueueSummary, err error) {
	if err := m.begin(ctx, "summary"); err != nil {
		return s, err
	}
	defer m.mu.Unlock()
	s.Gates = map[string]int{}
	ages := map[string]map[string]time.Duration{} // by gate and user
	for _, shard := range m.data {
		for name, b := range shard.backlogs {
			s.Notifications += len(b.entries)
			age := time.Since(b.entries[0].added)
			if isFanOut(name) {
				s.Oldest = max(s.Oldest, age)
				continue
			}
			s.Gates[b.gate] += len(b.entries)
			if ages[b.gate] == nil {
				ages[b.gate] = map[string]time.Duration{}
			}
			if user := b.entries[0].user; !isAlone(b.trouble) {
				ages[b.gate][user] = max(ages[b.gate][user], age)
			}
		}
	}
	for _, users := range ages {
		if of := slices.Sorted(maps.Values(users)); len(of) >= 3 {
			s.Oldest = max(s.Oldest, of[len(of)-3]) // three users have waited for so long
		}
	}
	return s, nil
}
