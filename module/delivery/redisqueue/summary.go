package redisqueue

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

const (
	sampledUsers = 1000 // whose logs are read
	listedGates  = 2000 // of each shard
	oldestUsers  = 3    // QueueSummary.Oldest is how long so many users have waited at a gate
)

// Summary implements [module.DeliveryQueue].
func (q *Queue) Summary(ctx context.Context, isAlone func(module.Trouble) bool) (s module.QueueSummary, err error) {
	gates, err := q.Index.gates(ctx)
	if err != nil {
		return s, err
	}
	s.Gates, s.Refused = map[string]int{}, q.Index.tryWrites(ctx)
	digests, total := map[string]string{}, 0
	for _, g := range gates {
		s.Gates[g.Gate], digests[stored.GateDigest(g.Gate)] = g.Users, g.Gate
		total += g.Users
	}
	users, err := q.Index.someUsers(ctx, gates, total)
	if err != nil {
		return s, err
	}
	ages := map[string][]time.Duration{} // of each user, by gate
	for some := range slices.Chunk(users, 100) {
		logs, err := q.waitsOf(ctx, some)
		if err != nil {
			return s, err
		}
		for _, log := range logs {
			s.Notifications += log.notifications
			for gate, age := range log.oldest(isAlone) {
				ages[gate] = append(ages[gate], age)
			}
		}
	}
	if len(users) >= sampledUsers {
		s.Notifications = int(float64(s.Notifications) * float64(total) / float64(len(users)))
	}
	for _, of := range ages {
		if slices.Sort(of); len(of) >= oldestUsers {
			s.Oldest = max(s.Oldest, of[len(of)-oldestUsers])
		}
	}
	return s, nil
}

// waiting is what a user has to send, without texts.
type waiting struct {
	user          mxid.UserID
	now           time.Time
	numbers       []int64 // of notifications
	pushers       []string
	states        []stored.PusherState
	kept          []stored.Kept
	added         []time.Time // of the first notification of each pusher
	notifications int         // counted for each pusher
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
func (w *waiting) oldest(isAlone func(module.Trouble) bool) map[string]time.Duration {
	oldest := map[string]time.Duration{}
	for i, s := range w.states {
		if !w.added[i].IsZero() && !isAlone(module.Trouble{Generation: s.Generation, Text: s.Trouble}) {
			oldest[s.Gate] = max(oldest[s.Gate], w.now.Sub(w.added[i]))
		}
	}
	return oldest
}

// waitsOf reads logs; see waits. It skips logs whose key has another type.
func (q *Queue) waitsOf(ctx context.Context, users []mxid.UserID) (logs []*waiting, err error) {
	if logs, err = q.waits(ctx, users); !isWrongType(err) {
		return logs, err
	}
	logs, err = nil, nil
	for _, user := range users {
		one, failed := q.waits(ctx, []mxid.UserID{user})
		if logs = append(logs, one...); failed != nil && !isWrongType(failed) {
			err = failed
		}
	}
	return logs, err
}

func isWrongType(err error) bool {
	return err != nil && strings.Contains(fault.Details(err), "WRONGTYPE")
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
		for n := range w.pushers {
			if s, found := stored.ReadPusherState(text(values[i].Val()[n])); found {
				kept, _ := stored.ReadKept(text(values[i].Val()[len(w.pushers)+n]))
				w.states, w.kept = append(w.states, s), append(w.kept, kept)
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
