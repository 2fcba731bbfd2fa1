package redisqueue

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/retry"
)

const (
	// maxGates is how many gates of a shard a look reads. The next look reads the next ones,
	// so that many closed gates do not hide an open one.
	maxGates = 256

	// The limit of a look is divided by the number of due gates, and bounded by minTaken, less of a
	// small limit, and maxTaken: so many users of a gate in a shard may be taken.
	minTaken = 4
	maxTaken = 500
)

// Look implements [module.DeliveryQueue]. It reads the gates of the shards in one round trip
// to each master, and takes users in another one.
func (q *Queue) Look(ctx context.Context, look module.Look) (looked module.Looked, err error) {
	began := time.Now()
	read := q.Index.readIndex(ctx)
	if err := q.Index.checkFormat(ctx, read.format); err != nil && fault.KindOf(err) != fault.Unavailable {
		return looked, err
	}
	chosen, rest := choose(read.gates, look)
	q.Index.takeAll(ctx, &looked, chosen, look.Lease, read.failed)
	for _, g := range rest {
		looked.Late, looked.More = max(looked.Late, g.late), true
	}
	looked.More = looked.More || len(read.full) > 0
	looked.Late = max(looked.Late, q.Index.looks.note(q.Index.Shards, began, read))
	if len(read.failed) == q.Index.Shards && len(looked.Users) == 0 {
		for _, err := range read.failed {
			return looked, err
		}
	}
	return looked, nil
}

// looks has, for each shard, the time of the last look that had no error, and how many
// gates the next look passes over.
type looks struct {
	mu   sync.Mutex
	good map[int]time.Time
	over map[int]int
}

// note adds a look, and returns the longest time without a good one.
func (l *looks) note(shards int, began time.Time, read *dueGates) (longest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for shard := range shards {
		last, known := l.good[shard]
		if read.failed[shard] != nil && known {
			longest = max(longest, time.Since(last))
			continue
		}
		l.good[shard] = began
		if l.over[shard] += maxGates; !read.full[shard] {
			l.over[shard] = 0
		}
	}
	return longest
}

func (l *looks) overOf(shard int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over[shard]
}

// dueGate is a gate with due users in a shard.
type dueGate struct {
	shard         int
	gate          string
	late          time.Duration
	most, failing int // users to take
	isClosed      bool
}

// dueGates is what a look reads.
type dueGates struct {
	gates  []dueGate
	full   map[int]bool  // shards in which more gates may be due
	format *string       // nil if it could not be read
	failed map[int]error // by shard
}

// readIndex reads the due gates of all shards, and the format. It leaves out masters that are
// silent.
func (x *Index) readIndex(ctx context.Context) *dueGates {
	all := &dueGates{full: map[int]bool{}, failed: map[int]error{}}
	gates, times := make([]*redis.ZSliceCmd, x.Shards), make([]*redis.TimeCmd, x.Shards)
	commands := make([]*redisclient.Command, x.Shards)
	for shard := range commands {
		key, over := x.keys.ShardGates(shard), int64(x.looks.overOf(shard))
		commands[shard] = &redisclient.Command{Key: key, Queue: func(ctx context.Context, to redisclient.Sender) func() error {
			gates[shard], times[shard] = to.ZRangeWithScores(ctx, key, over, over+maxGates-1), to.Time(ctx)
			return func() error { return cmp.Or(gates[shard].Err(), times[shard].Err()) }
		}}
	}
	var format *redis.StringCmd
	key := x.keys.DeliveryFormat()
	commands = append(commands, command(key, &format, func(ctx context.Context, to redisclient.Sender) *redis.StringCmd { return to.Get(ctx, key) }))
	errs := x.writer.Do(retry.LeaveSilent(ctx), commands...)
	if unlessNil(errs[x.Shards]) == nil {
		text := format.Val()
		all.format = &text
	}
	for shard := range x.Shards {
		if errs[shard] != nil {
			all.failed[shard] = errs[shard]
			continue
		}
		now, found := times[shard].Val().UnixMicro(), gates[shard].Val()
		due := slices.IndexFunc(found, func(z redis.Z) bool { return int64(z.Score) > now })
		if due < 0 {
			due = len(found)
		}
		if due == maxGates {
			all.full[shard] = true
		}
		for _, z := range found[:due] {
			gate, _ := z.Member.(string)
			all.gates = append(all.gates, dueGate{shard: shard, gate: gate, late: time.Duration(now-int64(z.Score)) * time.Microsecond})
		}
	}
	return all
}

// choose decides how many users of each gate to take in each shard. Rest are the open gates
// for which the limit has no place.
func choose(gates []dueGate, look module.Look) (chosen, rest []dueGate) {
	type allowance struct {
		module.GateLimit
		shards int
	}
	allowed := map[string]*allowance{}
	gates = slices.DeleteFunc(gates, func(g dueGate) bool {
		of := allowed[g.gate]
		if of == nil {
			of = &allowance{GateLimit: look.Gate(g.gate)}
			allowed[g.gate] = of
		}
		of.shards++
		return of.Most <= 0
	})
	slices.SortFunc(gates, func(a, b dueGate) int { return cmp.Compare(b.late, a.late) })
	gates = inTurn(gates, func(g dueGate) bool { return allowed[g.gate].IsLast })
	limit, fair := look.Limit, min(maxTaken, max(1, min(minTaken, look.Limit/minTaken), look.Limit/max(1, len(gates))))
	for _, g := range gates {
		of := allowed[g.gate]
		g.isClosed = of.IsClosed
		g.most = min(fair, limit, (of.Most+of.shards-1)/of.shards)
		g.failing = min(g.most, (of.Failing+of.shards-1)/of.shards)
		of.shards--
		switch {
		case g.most > 0:
			limit, of.Most, of.Failing = limit-g.most, of.Most-g.most, of.Failing-g.failing
			chosen = append(chosen, g)
		case limit == 0 && of.Most > 0 && !g.isClosed:
			rest = append(rest, g)
		}
	}
	return chosen, rest
}

// lastShare is the part of a look's gates that are the last ones, while there are others.
const lastShare = 4

// inTurn returns the gates in their order, except that last ones go singly between groups of others.
func inTurn(gates []dueGate, isLast func(dueGate) bool) (sorted []dueGate) {
	var others, last []dueGate
	for _, g := range gates {
		if isLast(g) {
			last = append(last, g)
		} else {
			others = append(others, g)
		}
	}
	for group := range slices.Chunk(others, lastShare-1) {
		sorted = append(sorted, group...)
		if len(group) == lastShare-1 && len(last) > 0 {
			sorted, last = append(sorted, last[0]), last[1:]
		}
	}
	return append(sorted, last...)
}

// takeAll takes users of gates, with a script for each shard.
func (x *Index) takeAll(ctx context.Context, looked *module.Looked, gates []dueGate, lease time.Duration, failed map[int]error) {
	byShard := map[int][]dueGate{}
	for _, g := range gates {
		byShard[g.shard] = append(byShard[g.shard], g)
	}
	shards := slices.Collect(maps.Keys(byShard))
	calls, commands := make([]*redisclient.Call, len(shards)), make([]*redisclient.Command, len(shards))
	for i, shard := range shards {
		args := newIndexArgs(x, shard)
		for _, g := range byShard[shard] {
			args.gate(g.gate)
			args.entries = append(args.entries, g.most, g.failing)
		}
		args.entries = append(args.entries, microseconds(lease))
		calls[i] = args.call(take)
		commands[i] = calls[i].Command()
	}
	for i, err := range x.writer.Do(retry.LeaveSilent(ctx), commands...) {
		var reply []any
		if err == nil {
			reply, err = sliceOf(calls[i])
		}
		of := byShard[shards[i]]
		if err == nil && len(reply) != 1+2*len(of) {
			err = unavailable("look", fmt.Errorf("%d replies", len(reply)))
		}
		if err != nil {
			failed[shards[i]] = err
			continue
		}
		now := micros(reply[0])
		for n, g := range of {
			before := len(looked.Users)
			x.addTaken(looked, g, now, lease, reply[1+2*n], true)
			x.addTaken(looked, g, now, lease, reply[2+2*n], false)
			looked.More = looked.More || !g.isClosed && len(looked.Users)-before == g.most
		}
	}
}

// addTaken adds the taken users of a gate.
func (x *Index) addTaken(t *module.Looked, g dueGate, now int64, lease time.Duration, reply any, fails bool) {
	pairs, _ := reply.([]any)
	for i := 0; i+1 < len(pairs); i += 2 {
		user := mxid.UserID(text(pairs[i]))
		l := x.listings.at(user, g.gate)
		l.place = place{g.shard, now + microseconds(lease)}
		x.listings.set(user, g.gate, l)
		t.Users = append(t.Users, module.DueUser{User: user, Gate: g.gate, Fails: fails})
		if !g.isClosed {
			t.Late = max(t.Late, time.Duration(now-micros(pairs[i+1]))*time.Microsecond)
		}
	}
}

// micros reads a time in microseconds, 0 if it is none.
func micros(reply any) int64 {
	at, _ := strconv.ParseFloat(text(reply), 64)
	return int64(at)
}
