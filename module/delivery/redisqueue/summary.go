package redisqueue

import (
	"cmp"
	"context"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
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
		logs, err := q.placesByUser(ctx, chunk)
		s.Refused = cmp.Or(s.Refused, err)
		for _, log := range logs {
			notifications, oldest := 0, map[string]time.Duration{} // by digest
			for _, p := range log {
				notifications += p.Notifications
				age, gate := oldest[p.Gate], names[p.Gate]
				if gate != "" && !p.Oldest.IsZero() && !isAlone(gate, module.Trouble{Generation: p.Generation, Text: p.Trouble}) {
					age = max(age, p.Now.Sub(p.Oldest))
				}
				oldest[p.Gate] = age
			}
			s.Notifications += notifications
			perSet += float64(notifications) / float64(max(1, len(oldest)))
			for gate, age := range oldest {
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
	s.largest = q.keepLargest(s.sets)
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
	gates, largest := 0, *q.largest.Load()
	for _, names := range byShard {
		gates += len(names)
	}
	var commands []*redisclient.Command
	others := 0 // gates that are asked, but not as the largest ones
	var counts []**redis.IntCmd
	for shard, of := range byShard {
		asked, rest := chooseGates(of, largest, gates <= manyGates)
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
		if largest[set.gate] == 0 {
			otherUsers += set.users
		}
	}
	left := gates - len(sets)/2
	if left > 0 && others > 0 { // as many users each as the others
		total += left * otherUsers / others
	}
	return sets, total, left == 0, err
}

// chooseGates returns the gates of a shard to ask about, and how many of them are not among the
// largest ones.
func chooseGates(names []string, largest map[string]int, all bool) (asked []string, others int) {
	for _, n := range rand.Perm(len(names)) {
		switch {
		case largest[names[n]] > 0:
			asked = append(asked, names[n])
		case all || others < someGates:
			asked = append(asked, names[n])
			others++
		}
	}
	return asked, others
}

// keepLargest returns the users of the gates with the most, and keeps it for the next summary.
func (q *Queue) keepLargest(sets []*gateSet) map[string]int {
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
	q.largest.Store(&users)
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

// userLog is a user's log while it is read, without texts.
type userLog struct {
	user    mxid.UserID
	key     string
	fields  *redis.StringSliceCmd
	time    *redis.TimeCmd
	pushers []string
	states  *redis.SliceCmd // the head, and the state and the cuts of each pusher
	places  []Place
	first   *redis.SliceCmd // notification of each place
}

// placesByUser returns the places of each user's pushers whose states can be read. It reads logs in
// three round trips, and skips a key of another type. After an error, it returns the other users.
func (q *Queue) placesByUser(ctx context.Context, users []mxid.UserID) (places [][]Place, err error) {
	var logs []*userLog
	for _, user := range users {
		logs = append(logs, &userLog{user: user, key: q.keys.UserLog(user)})
	}
	for _, read := range []func(*userLog) *redisclient.Command{(*userLog).readFields, (*userLog).readStates, (*userLog).readFirst} {
		var asked, answered []*userLog
		var commands []*redisclient.Command
		for _, log := range logs {
			if command := read(log); command != nil {
				asked, commands = append(asked, log), append(commands, command)
			}
		}
		err = cmp.Or(err, q.readEach(ctx, commands, func(i int) { answered = append(answered, asked[i]) }))
		logs = answered
	}
	for _, log := range logs {
		for i, value := range log.first.Val() {
			if e, found := stored.ReadLogEntry(text(value)); found {
				log.places[i].Oldest = time.UnixMilli(e.Added)
			}
		}
		places = append(places, log.places)
	}
	return places, err
}

func (l *userLog) readFields() *redisclient.Command {
	return &redisclient.Command{Key: l.key, Queue: func(ctx context.Context, to redisclient.Sender) func() error {
		l.fields, l.time = to.HKeys(ctx, l.key), to.Time(ctx)
		return func() error {
			if err := l.fields.Err(); !redisclient.IsWrongType(err) {
				return cmp.Or(err, l.time.Err())
			}
			return nil
		}
	}}
}

func (l *userLog) readStates() *redisclient.Command {
	wanted := []string{stored.LogField}
	for _, field := range l.fields.Val() {
		if stored.IsPusherField(field) {
			l.pushers, wanted = append(l.pushers, field), append(wanted, field, stored.KeptField(field))
		}
	}
	if len(l.pushers) == 0 {
		return nil
	}
	return readFields(l.key, &l.states, wanted)
}

func (l *userLog) readFirst() *redisclient.Command {
	values := l.states.Val()
	head, hasHead := stored.ReadLogHead(text(values[0]))
	var wanted []string
	for i, pusher := range l.pushers {
		if s, found := stored.ReadPusherState(text(values[1+2*i])); found && hasHead {
			kept, _ := stored.ReadKept(text(values[2+2*i]))
			first := append(kept.From(s.Number, head.Next, 1), 0)[0]
			wanted = append(wanted, stored.EntryField(first))
			l.places = append(l.places, Place{
				State: State{s, pusher}, User: l.user, Notifications: kept.Count(s.Number, head.Next), End: head.Next, Now: l.time.Val(),
			})
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	return readFields(l.key, &l.first, wanted)
}
