package redisqueue

import (
	"cmp"
	"context"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/retry"
	"github.com/pushfx/pushfx/module/stored"
)

const (
	sampledUsers = 1000 // whose logs are read
	fewUsers     = 50   // instead, beside many gates
	oldestUsers  = 3    // QueueSummary.Oldest is how long so many users have waited at a gate

	// A summary asks about all gates of all shards up to manyGates, otherwise about the largest
	// ones of the summary before, and about someGates others of each shard.
	manyGates    = 400
	someGates    = 8
	largestGates = 100
)

// Summary implements [module.DeliveryQueue]. Names of gates are free, so its cost does not
// grow with them.
func (q *Queue) Summary(ctx context.Context, isAlone func(gate string, t module.Trouble) bool) (s module.QueueSummary, err error) {
	ctx = retry.LeaveSilent(ctx)
	if !q.leads(ctx) {
		return module.QueueSummary{Elsewhere: true, Refused: q.Index.tryWrites(ctx)}, nil
	}
	some, err := q.sample(ctx)
	if len(some.sets) == 0 && err != nil {
		return s, err
	}
	s.Refused = cmp.Or(err, q.Index.tryWrites(ctx))
	s.Gates = some.largest
	ages := map[string][]time.Duration{} // of each user, by gate
	perSet := 0.0                        // notifications of the sampled users, for each gate that they are at
	names := map[string]string{}         // of gates, by digest
	for _, set := range some.sets {
		names[stored.GateDigest(set.gate)] = set.gate
	}
	for chunk := range slices.Chunk(some.users, 100) {
		logs, err := q.waitsOf(ctx, chunk)
		if err != nil { // these logs are left out
			s.Refused = cmp.Or(s.Refused, err)
			continue
		}
		for _, log := range logs {
			s.Notifications += log.notifications
			perSet += float64(log.notifications) / float64(max(1, log.gates()))
			for gate, age := range log.oldest(names, isAlone) {
				ages[gate] = append(ages[gate], age)
			}
		}
	}
	if len(some.users) > 0 && !some.isAll {
		s.Notifications = int(perSet * float64(some.total) / float64(len(some.users)))
	}
	for _, of := range ages {
		if slices.Sort(of); len(of) >= oldestUsers {
			s.Oldest = max(s.Oldest, of[len(of)-oldestUsers])
		}
	}
	return s, nil
}

// sample has sets of users, and some of the users.
type sample struct {
	sets    []*gateSet
	total   int            // users in all sets
	largest map[string]int // users at the gates with the most
	users   []mxid.UserID
	isAll   bool // there are no other users
}

func (q *Queue) sample(ctx context.Context) (s sample, err error) {
	s.sets, s.total, s.isAll, err = q.gateSets(ctx)
	s.largest = q.largest(s.sets)
	most := sampledUsers
	if !s.isAll {
		most = fewUsers
	}
	var failed error
	s.users, failed = q.someUsers(ctx, s.sets, min(1, float64(most)/float64(max(1, s.total))), most)
	s.isAll = s.isAll && len(s.users) < most
	return s, cmp.Or(err, failed)
}

// Gate is what waits at a gate.
type Gate struct {
	Users, Failing int
	Sample         []Place // of some of the users, up to 1,000 at all gates of all of them
}

// Gates returns what waits at the gates with the most users. After an error, it lacks what cannot
// be read.
func (q *Queue) Gates(ctx context.Context) (map[string]*Gate, error) {
	ctx = retry.LeaveSilent(ctx)
	some, err := q.sample(ctx)
	gates, digests := map[string]*Gate{}, map[string]*Gate{}
	for _, set := range some.sets {
		if some.largest[set.gate] == 0 {
			continue
		}
		g := gates[set.gate]
		if g == nil {
			g = &Gate{Users: some.largest[set.gate]}
			gates[set.gate], digests[stored.GateDigest(set.gate)] = g, g
		}
		if set.isFailing {
			g.Failing += set.users
		}
	}
	places, failed := q.Places(ctx, some.users)
	for _, p := range places {
		if g := digests[p.Gate]; g != nil {
			g.Sample = append(g.Sample, p)
		}
	}
	return gates, cmp.Or(err, failed)
}

// leadsFor is how long a host alone summarizes after its last summary.
const leadsFor = 35 * time.Second

// leads reports whether this host summarizes, which it does as long as it does so in time. If
// the key's master is away, each host does.
func (q *Queue) leads(ctx context.Context) bool {
	call := lead.Call([]string{q.keys.DeliverySummary()}, q.nonce, leadsFor.Milliseconds())
	if err := q.writer.Do(ctx, call.Command())[0]; err != nil {
		return true
	}
	taken, err := call.Reply.Int()
	return err != nil || taken == 1
}

// gateSet is a set of users of a gate in a shard.
type gateSet struct {
	gate, key string
	isFailing bool
	users     int // 0 if it could not be read
}

// gateSets returns sets of users, and about how many users there are in all sets. It leaves
// out shards that cannot be read, and returns the error of one of them.
func (q *Queue) gateSets(ctx context.Context) (sets []*gateSet, total int, isAll bool, err error) {
	byShard, err := q.Index.GateNames(ctx)
	gates := 0
	for _, names := range byShard {
		gates += len(names)
	}
	var commands []*redisclient.Command
	others := 0 // gates that are asked, but not as the largest ones
	var counts []**redis.IntCmd
	for shard, of := range byShard {
		asked, rest := q.summed.choose(of, gates <= manyGates)
		others += rest
		for _, gate := range asked {
			for n, key := range []string{q.keys.ShardDue(shard, gate), q.keys.ShardFailing(shard, gate)} {
				count := new(*redis.IntCmd)
				sets, counts = append(sets, &gateSet{gate: gate, key: key, isFailing: n == 1}), append(counts, count)
				commands = append(commands, command(key, count, func(ctx context.Context, to redisclient.Sender) *redis.IntCmd { return to.ZCard(ctx, key) }))
			}
		}
	}
	err = cmp.Or(err, q.readEach(ctx, commands, func(i int) { sets[i].users = int((*counts[i]).Val()) }))
	otherUsers := 0
	for _, set := range sets {
		total += set.users
		if !q.summed.isLargest(set.gate) {
			otherUsers += set.users
		}
	}
	left := gates - len(sets)/2
	if left > 0 && others > 0 { // as many users each as the others
		total += left * otherUsers / others
	}
	return sets, total, left == 0, err
}

// summed has the largest gates of the last summary.
type summed struct {
	mu      sync.Mutex
	largest map[string]int
}

func (s *summed) isLargest(gate string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, is := s.largest[gate]
	return is
}

// choose returns the gates of a shard to ask about, and how many of them are not among the
// largest ones.
func (s *summed) choose(names []string, all bool) (asked []string, others int) {
	for _, n := range rand.Perm(len(names)) {
		switch {
		case s.isLargest(names[n]):
			asked = append(asked, names[n])
		case all || others < someGates:
			asked = append(asked, names[n])
			others++
		}
	}
	return asked, others
}

// largest returns the users of the gates with the most, and keeps it.
func (q *Queue) largest(sets []*gateSet) map[string]int {
	users := map[string]int{}
	for _, set := range sets {
		if set.users > 0 {
			users[set.gate] += set.users
		}
	}
	names := slices.SortedFunc(maps.Keys(users), func(a, b string) int { return cmp.Or(users[b]-users[a], strings.Compare(a, b)) })
	for _, name := range names[min(len(names), largestGates):] {
		delete(users, name)
	}
	q.summed.mu.Lock()
	defer q.summed.mu.Unlock()
	q.summed.largest = users
	return maps.Clone(users)
}

// someUsers returns users of sets, about a share of each, and most at most.
func (q *Queue) someUsers(ctx context.Context, sets []*gateSet, share float64, most int) (users []mxid.UserID, err error) {
	var commands []*redisclient.Command
	var replies []**redis.StringSliceCmd
	expected := 0
	for _, n := range rand.Perm(len(sets)) {
		key, of := sets[n].key, sets[n].users
		if of == 0 || share < 1 && expected >= 2*most {
			continue
		}
		wanted := max(1, int(math.Ceil(share*float64(of))))
		expected += wanted
		reply := new(*redis.StringSliceCmd)
		replies, commands = append(replies, reply), append(commands, command(key, reply, func(ctx context.Context, to redisclient.Sender) *redis.StringSliceCmd {
			return to.ZRandMember(ctx, key, wanted)
		}))
	}
	seen := map[string]bool{}
	err = q.readEach(ctx, commands, func(i int) {
		for _, user := range (*replies[i]).Val() {
			if !seen[user] && len(users) < most {
				seen[user] = true
				users = append(users, mxid.UserID(user))
			}
		}
	})
	return users, err
}

// waiting is what a user has to send, without texts.
type waiting struct {
	user          mxid.UserID
	now           time.Time
	numbers       []int64  // of notifications
	pushers       []string // whose states can be read
	states        []stored.PusherState
	kept          []stored.Kept
	added         []time.Time // of the first notification of each pusher
	notifications int         // counted for each pusher
}

// gates returns at how many gates the user has something to send.
func (w *waiting) gates() int {
	gates := map[string]bool{}
	for _, s := range w.states {
		gates[s.Gate] = true
	}
	return len(gates)
}

// first returns the number of the first notification of a pusher, 0 if there is none, and how
// many it has before it.
func (w *waiting) first(i int) (number int64, left int) {
	if all := waitingOf(w.states[i], w.kept[i], w.numbers); len(all) > 0 {
		return all[0], len(all)
	}
	return 0, 0
}

// oldest returns how long the user has waited, by the digest of the gate.
func (w *waiting) oldest(names map[string]string, isAlone func(gate string, t module.Trouble) bool) map[string]time.Duration {
	oldest := map[string]time.Duration{}
	for i, s := range w.states {
		gate, found := names[s.Gate]
		if found && !w.added[i].IsZero() && !isAlone(gate, module.Trouble{Generation: s.Generation, Text: s.Trouble}) {
			oldest[s.Gate] = max(oldest[s.Gate], w.now.Sub(w.added[i]))
		}
	}
	return oldest
}

// waitsOf reads logs; see waits. It skips logs whose key has another type.
func (q *Queue) waitsOf(ctx context.Context, users []mxid.UserID) (logs []*waiting, err error) {
	if logs, err = q.waits(ctx, users); !redisclient.IsWrongType(err) {
		return logs, err
	}
	logs, err = nil, nil
	for _, user := range users {
		one, failed := q.waits(ctx, []mxid.UserID{user})
		if logs = append(logs, one...); failed != nil && !redisclient.IsWrongType(failed) {
			err = failed
		}
	}
	return logs, err
}

// waits reads logs, without texts, in three round trips: fields, states, and times.
func (q *Queue) waits(ctx context.Context, users []mxid.UserID) ([]*waiting, error) {
	all, fields, times := make([]*waiting, len(users)), make([]*redis.StringSliceCmd, len(users)), make([]*redis.TimeCmd, len(users))
	var commands []*redisclient.Command
	for i, user := range users {
		all[i] = &waiting{user: user}
		key := q.keys.UserLog(user)
		commands = append(commands, &redisclient.Command{Key: key, Queue: func(ctx context.Context, to redisclient.Sender) func() error {
			fields[i], times[i] = to.HKeys(ctx, key), to.Time(ctx)
			return func() error { return cmp.Or(fields[i].Err(), times[i].Err()) }
		}})
	}
	if err := q.read(ctx, commands...); err != nil {
		return nil, err
	}
	commands = nil
	values := make([]*redis.SliceCmd, len(users))
	for i, w := range all {
		w.now = times[i].Val()
		for _, field := range fields[i].Val() {
			if number, isEntry := stored.ReadEntryField(field); isEntry {
				w.numbers = append(w.numbers, number)
			} else if stored.IsPusherField(field) {
				w.pushers = append(w.pushers, field)
			}
		}
		if slices.Sort(w.numbers); len(w.pushers) > 0 {
			fields := slices.Clone(w.pushers)
			for _, pusher := range w.pushers {
				fields = append(fields, stored.KeptField(pusher))
			}
			commands = append(commands, readFields(q.keys.UserLog(w.user), &values[i], fields))
		}
	}
	if err := q.read(ctx, commands...); err != nil {
		return nil, err
	}
	commands = nil
	entries := make([]*redis.SliceCmd, len(all))
	for i, w := range all {
		if values[i] == nil {
			continue
		}
		var wanted []string
		named := w.pushers
		w.pushers = nil
		for n, pusher := range named {
			if s, found := stored.ReadPusherState(text(values[i].Val()[n])); found {
				kept, _ := stored.ReadKept(text(values[i].Val()[len(named)+n]))
				w.pushers, w.states, w.kept = append(w.pushers, pusher), append(w.states, s), append(w.kept, kept)
				number, left := w.first(len(w.states) - 1)
				w.notifications += left
				wanted = append(wanted, stored.EntryField(number))
			}
		}
		if w.added = make([]time.Time, len(wanted)); len(wanted) > 0 {
			commands = append(commands, readFields(q.keys.UserLog(w.user), &entries[i], wanted))
		}
	}
	return all, q.readAdded(ctx, all, entries, commands)
}

func (q *Queue) readAdded(ctx context.Context, all []*waiting, entries []*redis.SliceCmd, commands []*redisclient.Command) error {
	if err := q.read(ctx, commands...); err != nil {
		return err
	}
	for i, w := range all {
		if entries[i] == nil {
			continue
		}
		for n, value := range entries[i].Val() {
			if e, found := stored.ReadLogEntry(text(value)); found {
				w.added[n] = time.UnixMilli(e.Added)
			}
		}
	}
	return nil
}
