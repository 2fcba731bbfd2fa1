package queuetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

var _ module.DeliveryQueue = (*Memory)(nil)

// Memory is a [module.DeliveryQueue] in memory, for tests. Hosts may share it. It is safe
// for concurrent use. Its clock is [time.Now].
type Memory struct {
	mu    sync.Mutex
	logs  map[mxid.UserID]*memoryLog
	sent  map[memoryPusher]string
	taken map[memoryPlace]time.Time // until when looks pass over a user at a gate, at least
	nonce int
	given int // back to the looks
	calls int

	// Fail is called before each operation, unless it is nil. Its error fails the operation. The user
	// is empty for an operation that has none.
	Fail func(operation string, user mxid.UserID) error

	// PartitionOf numbers the partition of the queue that has a user. If it is nil, the queue has one.
	PartitionOf func(user mxid.UserID) int

	// IsConfirmed reports whether replicas or a disk confirm what is added for a user. If it
	// is nil, they confirm all.
	IsConfirmed func(user mxid.UserID) bool
}

type memoryPusher struct {
	user   mxid.UserID
	pusher string
}

type memoryPlace struct {
	user mxid.UserID
	gate string
}

// memoryLog is the log of a user. It is kept for a while after its last notification was
// sent, because of ids.
type memoryLog struct {
	entries []module.Notification
	next    int64
	pushers map[string]*memoryState
	ids     []string
	fails   map[string]bool // gates
	cuts    int64
	emptyAt time.Time // when the last pusher had nothing to send any more
}

type memoryState struct {
	number  int64
	lost    map[int64]bool // numbers that were cut
	until   time.Time      // when it is due, or its claim lapses
	nonce   string         // of its claim, or empty
	ended   string         // the nonce of the claim that was postponed last
	delayed bool           // it was never claimed
	gate    string
	trouble module.Trouble
}

const maxMemoryBytes = 1 << 20 // of a user's texts

// NewMemory returns an empty queue.
func NewMemory() *Memory {
	return &Memory{
		logs: map[mxid.UserID]*memoryLog{}, sent: map[memoryPusher]string{}, taken: map[memoryPlace]time.Time{},
	}
}

func (m *Memory) begin(ctx context.Context, operation string, user mxid.UserID) error {
	if err := ctx.Err(); err != nil {
		return module.Unavailable(err)
	}
	if m.Fail != nil {
		if err := m.Fail(operation, user); fault.KindOf(err) == fault.Database {
			return err
		} else if err != nil {
			return module.Unavailable(err)
		}
	}
	m.mu.Lock()
	m.calls++
	return nil
}

// Calls returns how many operations there were.
func (m *Memory) Calls() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls
}

// Waiting returns how many notifications wait, counted for each pusher.
func (m *Memory) Waiting() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, log := range m.logs {
		for _, p := range log.pushers {
			n += len(log.of(p))
		}
	}
	return n
}

// Open implements [module.DeliveryQueue].
func (m *Memory) Open(ctx context.Context) error {
	if err := m.begin(ctx, "open", ""); err != nil {
		return err
	}
	m.mu.Unlock()
	return nil
}

// Partition implements [module.DeliveryQueue].
func (m *Memory) Partition(_ context.Context, users []mxid.UserID) (partitions [][]mxid.UserID) {
	by := map[int][]mxid.UserID{}
	for _, user := range users {
		n := 0
		if m.PartitionOf != nil {
			n = m.PartitionOf(user)
		}
		by[n] = append(by[n], user)
	}
	for _, n := range slices.Sorted(maps.Keys(by)) {
		partitions = append(partitions, by[n])
	}
	return partitions
}

func (log *memoryLog) bytes() (n int) {
	for _, e := range log.entries {
		n += len(e.Text)
	}
	return n
}

// of returns the notifications that a pusher has before it, which the caller does not change.
func (log *memoryLog) of(p *memoryState) (all []module.Notification) {
	at, _ := slices.BinarySearchFunc(log.entries, p.number, func(e module.Notification, n int64) int { return cmp.Compare(e.Number, n) })
	if len(p.lost) == 0 {
		return log.entries[at:]
	}
	for _, e := range log.entries[at:] {
		if !p.lost[e.Number] {
			all = append(all, e)
		}
	}
	return all
}

// removePassed removes the notifications that no pusher has before it.
func (log *memoryLog) removePassed() {
	has := map[int64]bool{}
	for _, p := range log.pushers {
		for _, e := range log.of(p) {
			has[e.Number] = true
		}
	}
	log.entries = slices.DeleteFunc(log.entries, func(e module.Notification) bool { return !has[e.Number] })
}

// Append implements [module.DeliveryQueue].
func (m *Memory) Append(ctx context.Context, requests []module.AppendRequest) []module.Result[module.Appended] {
	results := make([]module.Result[module.Appended], len(requests))
	for i, a := range requests {
		if results[i].Err = m.begin(ctx, "append", a.User); results[i].Err == nil {
			results[i].Value = m.append(a)
			if m.IsConfirmed != nil && !m.IsConfirmed(a.User) {
				results[i].Err = module.Unavailable(fault.ErrNotConfirmed)
			}
			m.mu.Unlock()
		}
	}
	return results
}

func (m *Memory) append(a module.AppendRequest) (done module.Appended) {
	now := time.Now()
	log := m.logs[a.User]
	if log == nil || len(log.pushers) == 0 && now.Sub(log.emptyAt) >= module.RepeatsKeptFor {
		log = &memoryLog{next: 1, pushers: map[string]*memoryState{}, fails: map[string]bool{}}
		m.logs[a.User] = log
	}
	n := a.Notification
	done.Again = slices.Contains(log.ids, n.ID)
	begin := log.next
	if isLastCounts := log.hasLastCounts(); n.Priority == module.CountsOnly && isLastCounts {
		begin = log.next - 1
	} else if !done.Again {
		log.add(n, a)
	}
	m.nonce++
	nonce, claims := fmt.Sprint("n", m.nonce), a.MaxClaims
	for _, r := range a.Pushers {
		done.Claims = append(done.Claims, m.receive(log, a, r, begin, nonce, &claims, &done))
	}
	if len(log.pushers) == 0 {
		log.entries, log.emptyAt = nil, now
	}
	done.Length, done.End = len(log.entries), log.next
	return done
}

// hasLastCounts reports whether the last notification has counts only, and no claimed pusher
// is at it.
func (log *memoryLog) hasLastCounts() bool {
	if len(log.entries) == 0 {
		return false
	}
	last := log.entries[len(log.entries)-1]
	if last.Priority != module.CountsOnly || last.Number != log.next-1 {
		return false
	}
	for _, p := range log.pushers {
		if p.nonce != "" && log.of(p)[0].Number == last.Number {
			return false
		}
	}
	return true
}

func (log *memoryLog) add(n module.Notification, a module.AppendRequest) {
	n.Number, n.Added = log.next, time.UnixMilli(time.Now().UnixMilli())
	begins := slices.ContainsFunc(a.Pushers, func(r module.Recipient) bool { return log.pushers[r.Pusher] == nil })
	bytes := log.bytes() + len(n.Text)
	if bytes > maxMemoryBytes || !begins && bytes > a.MaxUserBytes {
		n.Text = ""
	}
	log.entries = append(log.entries, n)
	log.next++
	log.ids = append(log.ids, n.ID)
	log.ids = log.ids[max(0, len(log.ids)-module.RepeatsKept):]
}

func (p *memoryState) hasten(until time.Time, done *module.Appended) {
	if p.until.After(until) {
		p.until, done.Hastened = until, true
	}
}

// receive gives a notification to a pusher, and returns the claim, if any.
func (m *Memory) receive(log *memoryLog, a module.AppendRequest, r module.Recipient, begin int64, nonce string, claims *int, done *module.Appended) *module.Claim {
	again, now := done.Again, time.Now()
	delete(m.taken, memoryPlace{a.User, r.Gate})
	p := log.pushers[r.Pusher]
	switch {
	case p == nil && again:
		return nil
	case p == nil:
		isClaimed := r.Claim && *claims > 0
		p = &memoryState{number: begin, gate: r.Gate, until: now, delayed: !isClaimed}
		log.pushers[r.Pusher] = p
		if !isClaimed {
			if !r.Claim {
				p.until = now.Add(r.Delay)
			}
			return nil
		}
		*claims--
		p.nonce, p.until = nonce, now.Add(a.Lease)
		return &module.Claim{User: a.User, Pusher: r.Pusher, Gate: r.Gate, Number: begin, Nonce: nonce, Fails: log.fails[r.Gate]}
	case p.nonce != "":
		return nil
	}
	delete(m.taken, memoryPlace{a.User, p.gate})
	isNew := p.trouble.Generation > 0 && p.trouble.Generation < r.Generation
	if isNew {
		p.trouble = module.Trouble{}
	}
	if isNew || a.Urgent {
		p.hasten(now, done)
	} else if p.delayed && !again {
		p.hasten(now.Add(r.Delay), done)
	}
	p.gate = r.Gate
	return nil
}

// Look implements [module.DeliveryQueue].
func (m *Memory) Look(ctx context.Context, look module.Look) (looked module.Looked, err error) {
	if err := m.begin(ctx, "look", ""); err != nil {
		return looked, err
	}
	defer m.mu.Unlock()
	now := time.Now()
	due := m.due(now)
	slices.SortFunc(due, func(a, b memoryDue) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.User, b.User)) })
	gates, byLast := map[string]*module.GateLimit{}, map[bool][]memoryDue{}
	for _, u := range due {
		of := gates[u.Gate]
		if of == nil {
			limit := look.Gate(u.Gate)
			of = &limit
			gates[u.Gate] = of
		}
		if !of.IsClosed {
			looked.Late = max(looked.Late, now.Sub(u.at))
		}
		if of.Most <= 0 || u.Fails && of.Failing <= 0 {
			continue
		}
		of.Most--
		if u.Fails {
			of.Failing--
		}
		byLast[of.IsLast] = append(byLast[of.IsLast], u)
	}
	ofLast := min(len(byLast[true]), max(look.Limit/4, look.Limit-len(byLast[false])))
	for _, isLast := range []bool{false, true} {
		for i, u := range byLast[isLast] {
			if isLast && i >= ofLast || !isLast && i >= look.Limit-ofLast {
				looked.More = looked.More || !gates[u.Gate].IsClosed
				continue
			}
			m.taken[memoryPlace{u.User, u.Gate}] = now.Add(look.Lease)
			looked.Users = append(looked.Users, u.DueUser)
		}
	}
	return looked, nil
}

type memoryDue struct {
	module.DueUser
	at time.Time
}

func (m *Memory) due(now time.Time) (all []memoryDue) {
	for user, log := range m.logs {
		at := map[string]time.Time{} // by gate
		for _, p := range log.pushers {
			if first, found := at[p.gate]; !found || p.until.Before(first) {
				at[p.gate] = p.until
			}
		}
		for gate, at := range at {
			if taken := m.taken[memoryPlace{user, gate}]; taken.After(at) {
				at = taken
			}
			if !at.After(now) {
				all = append(all, memoryDue{module.DueUser{User: user, Gate: gate, Fails: log.fails[gate]}, at})
			}
		}
	}
	return all
}

// Claim implements [module.DeliveryQueue].
func (m *Memory) Claim(ctx context.Context, requests []module.ClaimRequest) []module.Result[module.Claimed] {
	results := make([]module.Result[module.Claimed], len(requests))
	for i, r := range requests {
		if r.Limit == 0 {
			m.giveBack(r.DueUser)
			continue
		}
		if results[i].Err = m.begin(ctx, "claim", r.User); results[i].Err == nil {
			results[i].Value = m.claim(r)
			m.mu.Unlock()
		}
	}
	return results
}

// giveBack lets looks return a user again, behind others, in the order of the calls.
func (m *Memory) giveBack(u module.DueUser) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.given++
	m.taken[memoryPlace{u.User, u.Gate}] = time.Now().Add(time.Duration(m.given))
}

func (m *Memory) claim(r module.ClaimRequest) (claimed module.Claimed) {
	log, now := m.logs[r.User], time.Now()
	if log == nil {
		return claimed
	}
	claimed.End = log.next
	m.nonce++
	known, fails := 0, log.fails[r.Gate]
	if fails {
		r.Limit = min(r.Limit, 1)
	}
	for _, of := range r.Pushers {
		p := log.pushers[of.Pusher]
		if p == nil {
			continue
		}
		known++
		if len(claimed.Pushers) == r.Limit || p.until.After(now) || p.gate != r.Gate && of.Gate != r.Gate {
			continue
		}
		p.nonce, p.until, p.gate, p.delayed = fmt.Sprint("n", m.nonce), now.Add(r.Lease), r.Gate, false
		read := r.Read
		if p.trouble != (module.Trouble{}) {
			read = 1
		}
		claimed.Pushers = append(claimed.Pushers, module.ClaimedPusher{
			Claim:   &module.Claim{User: r.User, Pusher: of.Pusher, Gate: r.Gate, Number: p.number, Nonce: p.nonce, Fails: fails},
			Trouble: p.trouble, Notifications: firstOf(log.of(p), read), Waiting: len(log.of(p)),
		})
	}
	claimed.Unknown = known < len(log.pushers)
	m.taken[memoryPlace{r.User, r.Gate}] = now // the user goes behind others
	if len(claimed.Pushers) > 0 {
		m.taken[memoryPlace{r.User, r.Gate}] = now.Add(r.Rest)
	}
	return claimed
}

func firstOf(all []module.Notification, n int) []module.Notification {
	return slices.Clone(all[:min(n, len(all))])
}

// of returns the log and the state of a claimed pusher. The caller unlocks m unless there is
// an error.
func (m *Memory) of(ctx context.Context, operation string, c *module.Claim) (*memoryLog, *memoryState, error) {
	if err := m.begin(ctx, operation, c.User); err != nil {
		return nil, nil, err
	}
	if log := m.logs[c.User]; log != nil {
		if p := log.pushers[c.Pusher]; p != nil && p.nonce == c.Nonce && p.number == c.Number {
			return log, p, nil
		}
	}
	m.mu.Unlock()
	return nil, nil, module.ErrFenced
}

// Read implements [module.DeliveryQueue].
func (m *Memory) Read(ctx context.Context, c *module.Claim, limit int) (all []module.Notification, end int64, err error) {
	if err := m.begin(ctx, "read", c.User); err != nil {
		return nil, 0, err
	}
	defer m.mu.Unlock()
	log := m.logs[c.User]
	if log == nil {
		return nil, 0, nil
	}
	p := memoryState{number: c.Number}
	if of := log.pushers[c.Pusher]; of != nil {
		p.lost = of.lost
	}
	return firstOf(log.of(&p), limit), log.next, nil
}

// Complete implements [module.DeliveryQueue].
func (m *Memory) Complete(ctx context.Context, c *module.Claim, d module.Done) (left int, err error) {
	log, p, err := m.of(ctx, "complete", c)
	if err != nil {
		return 0, err
	}
	defer m.mu.Unlock()
	if d.Sent != "" {
		m.sent[memoryPusher{c.User, c.Pusher}] = d.Sent
	}
	if d.Answered {
		delete(log.fails, c.Gate)
	}
	p.number, p.trouble = d.To, d.Trouble
	c.Number = d.To
	if d.To < log.next {
		if len(log.pushers) == 1 {
			log.removePassed()
		}
		return int(log.next - d.To), nil
	}
	delete(log.pushers, c.Pusher)
	if len(log.pushers) == 0 {
		log.entries, log.emptyAt = nil, time.Now()
	}
	return 0, nil
}

// Sent implements [module.DeliveryQueue].
func (m *Memory) Sent(ctx context.Context, user mxid.UserID, pusher string) (string, error) {
	if err := m.begin(ctx, "sent", user); err != nil {
		return "", err
	}
	defer m.mu.Unlock()
	return m.sent[memoryPusher{user, pusher}], nil
}

// Postpone implements [module.DeliveryQueue].
func (m *Memory) Postpone(ctx context.Context, c *module.Claim, delay time.Duration, trouble module.Trouble, fails bool) error {
	log, p, err := m.of(ctx, "postpone", c)
	if err != nil {
		if m.hasPostponed(c) && errors.Is(err, module.ErrFenced) {
			return nil
		}
		return err
	}
	defer m.mu.Unlock()
	p.nonce, p.ended, p.until, p.gate, p.trouble = "", c.Nonce, time.Now().Add(delay), c.Gate, trouble
	if place := (memoryPlace{c.User, c.Gate}); m.taken[place].After(p.until) {
		m.taken[place] = p.until
	}
	if fails {
		log.fails[c.Gate] = true
	}
	return nil
}

// hasPostponed reports whether a postponement of a claim is repeated.
func (m *Memory) hasPostponed(c *module.Claim) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	log := m.logs[c.User]
	if log == nil || log.pushers[c.Pusher] == nil {
		return false
	}
	p := log.pushers[c.Pusher]
	return p.nonce == "" && p.ended == c.Nonce && p.number == c.Number
}

// Renew implements [module.DeliveryQueue].
func (m *Memory) Renew(ctx context.Context, c *module.Claim, lease time.Duration, fails bool) error {
	log, p, err := m.of(ctx, "renew", c)
	if err != nil {
		return err
	}
	defer m.mu.Unlock()
	p.until = time.Now().Add(lease)
	if fails {
		log.fails[c.Gate] = true
	}
	return nil
}

// Log implements [module.DeliveryQueue].
func (m *Memory) Log(ctx context.Context, user mxid.UserID) (all module.Log, err error) {
	if err := m.begin(ctx, "log", user); err != nil {
		return all, err
	}
	defer m.mu.Unlock()
	log := m.logs[user]
	if log == nil {
		return all, nil
	}
	all.Notifications, all.Bytes, all.Cuts, all.Failing = slices.Clone(log.entries), log.bytes(), log.cuts, slices.Sorted(maps.Keys(log.fails))
	for _, name := range slices.Sorted(maps.Keys(log.pushers)) {
		p := log.pushers[name]
		of := module.LogPusher{Pusher: name, Number: p.number, Claimed: p.nonce != "", Due: p.until, Trouble: p.trouble}
		for _, e := range log.of(p) {
			of.Waiting = append(of.Waiting, e.Number)
		}
		all.Pushers = append(all.Pushers, of)
	}
	return all, nil
}

// Cut implements [module.DeliveryQueue].
func (m *Memory) Cut(ctx context.Context, user mxid.UserID, log module.Log) (done bool, err error) {
	if err := m.begin(ctx, "cut", user); err != nil {
		return false, err
	}
	defer m.mu.Unlock()
	of := m.logs[user]
	if of == nil || of.cuts != log.Cuts {
		return false, nil
	}
	of.cuts++
	for _, l := range log.Pushers {
		p := of.pushers[l.Pusher]
		if p == nil {
			continue
		}
		p.lost = map[int64]bool{}
		for i, e := range log.Notifications {
			if i < len(log.Notifications)-1 && !slices.Contains(l.Waiting, e.Number) {
				p.lost[e.Number] = true
			}
		}
	}
	of.removePassed()
	return true, nil
}

// Forget implements [module.DeliveryQueue].
func (m *Memory) Forget(ctx context.Context, user mxid.UserID) error {
	if err := m.begin(ctx, "forget", user); err != nil {
		return err
	}
	defer m.mu.Unlock()
	delete(m.logs, user)
	return nil
}

// Summary implements [module.DeliveryQueue].
func (m *Memory) Summary(ctx context.Context, isAlone func(gate string, t module.Trouble) bool) (s module.QueueSummary, err error) {
	if err := m.begin(ctx, "summary", ""); err != nil {
		return s, err
	}
	defer m.mu.Unlock()
	s.Gates = map[string]int{}
	ages := map[string][]time.Duration{} // of each user, by gate
	for _, log := range m.logs {
		oldest := map[string]time.Duration{}
		gates := map[string]bool{}
		for _, p := range log.pushers {
			gates[p.gate] = true
			waiting := log.of(p)
			s.Notifications += len(waiting)
			if len(waiting) > 0 && !isAlone(p.gate, p.trouble) {
				oldest[p.gate] = max(oldest[p.gate], time.Since(waiting[0].Added))
			}
		}
		for gate := range gates {
			s.Gates[gate]++
		}
		for gate, age := range oldest {
			ages[gate] = append(ages[gate], age)
		}
	}
	for _, of := range ages {
		if slices.Sort(of); len(of) >= 3 {
			s.Oldest = max(s.Oldest, of[len(of)-3]) // three users have waited for so long
		}
	}
	return s, nil
}
