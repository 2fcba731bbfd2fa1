package redisqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
)

const (
	// maxGates is how many gates of a shard a look reads. The next look reads the next ones,
	// so that many closed gates do not hide an open one.
	maxGates = 256

	// The limit of a look is divided by the number of due gates, and bounded by minTaken and
	// maxTaken: so many users of a gate in a shard may be taken.
	minTaken = 4
	maxTaken = 500

	// A look leaves behind a master that has not answered after so long, when another one has.
	maxLookWait = 200 * time.Millisecond
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
	looked.Users = append(looked.Users, q.Index.looks.takeLate()...)
	for _, g := range rest {
		looked.Late, looked.More = max(looked.Late, g.late), true
	}
	looked.More = looked.More || read.more
	looked.Late = max(looked.Late, q.Index.looks.note(q.Index.Shards, began, read.failed))
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
	away map[*redis.Client]bool // masters with a request that has not ended
	late []module.DueUser       // their users were taken after a look had returned
}

func (l *looks) takeLate() []module.DueUser {
	l.mu.Lock()
	defer l.mu.Unlock()
	late := l.late
	l.late = nil
	return late
}

// note adds a look, and returns the longest time without a good one.
func (l *looks) note(shards int, began time.Time, failed map[int]error) (longest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.good == nil {
		l.good = map[int]time.Time{}
	}
	for shard := range shards {
		if last, known := l.good[shard]; failed[shard] == nil || !known {
			l.good[shard] = began
		} else {
			longest = max(longest, time.Since(last))
		}
	}
	return longest
}

func (l *looks) overOf(shard int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over[shard]
}

// read notes how many gates of a shard were read, and reports whether there may be more.
func (l *looks) read(shard int, isFull bool) (more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over == nil {
		l.over = map[int]int{}
	}
	if isFull {
		l.over[shard] += maxGates
	} else {
		l.over[shard] = 0
	}
	return isFull
}

// begin reports whether a master may be asked.
func (l *looks) begin(master *redis.Client) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.away == nil {
		l.away = map[*redis.Client]bool{}
	}
	isAway := l.away[master]
	l.away[master] = true
	return !isAway
}

func (l *looks) end(master *redis.Client) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.away, master)
}

var errAway = errors.New("the master does not answer")

// sideBySide asks masters, each for itself, and passes on the answers. It does not wait for a
// master that is away: its request goes on, and it is not asked again until that has ended.
// Then the answer goes to late. If ctx has ended, it asks none.
func sideBySide[T any](ctx context.Context, x *Index, masters []*redis.Client, ask func(context.Context, *redis.Client) T, answer, late func(T)) (silent []*redis.Client) {
	if ctx.Err() != nil {
		return masters
	}
	var mu sync.Mutex
	hasLeft, began, answers := false, time.Now(), make(chan *redis.Client, len(masters))
	got := map[*redis.Client]T{}
	asked := 0
	for _, master := range masters {
		if !x.looks.begin(master) {
			silent = append(silent, master)
			continue
		}
		asked++
		go func() {
			result := ask(context.WithoutCancel(ctx), master)
			x.looks.end(master)
			mu.Lock()
			defer mu.Unlock()
			if hasLeft {
				late(result)
				return
			}
			got[master] = result
			answers <- master
		}()
	}
	var patience <-chan time.Time
	for n := 0; n < asked; n++ {
		select {
		case <-answers:
			if patience == nil {
				took := time.Since(began)
				patience = time.After(max(maxLookWait, 2*took) - took)
			}
			continue
		case <-patience:
		case <-ctx.Done():
		}
		break
	}
	mu.Lock()
	defer mu.Unlock()
	hasLeft = true
	for _, master := range masters {
		if result, found := got[master]; found {
			answer(result)
		} else if !slices.Contains(silent, master) {
			silent = append(silent, master)
		}
	}
	return silent
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
	more   bool          // gates may be due that were not read
	format *string       // nil if it could not be read
	failed map[int]error // by shard
}

// readIndex reads the due gates of all shards, and the format.
func (x *Index) readIndex(ctx context.Context) *dueGates {
	all := &dueGates{failed: map[int]error{}}
	masters, shards := x.byMaster(ctx)
	formatOn := x.pipelines.Master(ctx, x.keys.DeliveryFormat())
	if !slices.Contains(masters, formatOn) {
		masters = append(masters, formatOn)
	}
	silent := sideBySide(ctx, x, masters, func(ctx context.Context, master *redis.Client) *dueGates {
		return x.readShards(ctx, shards[master], master == formatOn)
	}, func(part *dueGates) {
		all.gates, all.more = append(all.gates, part.gates...), all.more || part.more
		if part.format != nil {
			all.format = part.format
		}
		for shard, err := range part.failed {
			all.failed[shard] = err
		}
	}, func(*dueGates) {})
	for _, master := range silent {
		for _, shard := range shards[master] {
			all.failed[shard] = unavailable("look", cmp.Or(ctx.Err(), errAway))
		}
	}
	return all
}

// readShards reads the due gates of shards of a master.
func (x *Index) readShards(ctx context.Context, shards []int, withFormat bool) *dueGates {
	part := &dueGates{failed: map[int]error{}}
	gates, times := make([]*redis.ZSliceCmd, len(shards)), make([]*redis.TimeCmd, len(shards))
	commands := make([]*redisclient.Command, len(shards))
	for i, shard := range shards {
		key, over := x.keys.ShardGates(shard), int64(x.looks.overOf(shard))
		commands[i] = &redisclient.Command{Key: key, Queue: func(ctx context.Context, to redisclient.Sender) func() error {
			gates[i], times[i] = to.ZRangeWithScores(ctx, key, over, over+maxGates-1), to.Time(ctx)
			return func() error { return cmp.Or(gates[i].Err(), times[i].Err()) }
		}}
	}
	var format *redis.StringCmd
	if withFormat {
		key := x.keys.DeliveryFormat()
		commands = append(commands, command(key, &format, func(ctx context.Context, to redisclient.Sender) *redis.StringCmd { return to.Get(ctx, key) }))
	}
	errs := x.writer.Do(ctx, commands...)
	if withFormat && unlessNil(errs[len(shards)]) == nil {
		text := format.Val()
		part.format = &text
	}
	for i, shard := range shards {
		if errs[i] != nil {
			part.failed[shard] = errs[i]
			continue
		}
		now, isFull := times[i].Val().UnixMicro(), len(gates[i].Val()) == maxGates
		for _, z := range gates[i].Val() {
			if int64(z.Score) > now {
				isFull = false
				break
			}
			gate, _ := z.Member.(string)
			part.gates = append(part.gates, dueGate{shard: shard, gate: gate, late: time.Duration(now-int64(z.Score)) * time.Microsecond})
		}
		part.more = x.looks.read(shard, isFull) || part.more
	}
	return part
}

// choose decides how many users of each gate to take in each shard. Rest are the open gates
// for which the limit has no place.
func choose(gates []dueGate, look module.Look) (chosen, rest []dueGate) {
	type allowance struct {
		most, failing, shards int
		isClosed              bool
	}
	allowed := map[string]*allowance{}
	gates = slices.DeleteFunc(gates, func(g dueGate) bool {
		of := allowed[g.gate]
		if of == nil {
			of = &allowance{}
			of.most, of.failing, of.isClosed = look.Gate(g.gate)
			allowed[g.gate] = of
		}
		of.shards++
		return of.most <= 0
	})
	slices.SortFunc(gates, func(a, b dueGate) int { return cmp.Compare(b.late, a.late) })
	limit, fair := look.Limit, min(maxTaken, max(minTaken, look.Limit/max(1, len(gates))))
	for _, g := range gates {
		of := allowed[g.gate]
		g.isClosed = of.isClosed
		g.most = min(fair, limit, (of.most+of.shards-1)/of.shards)
		g.failing = min(g.most, (of.failing+of.shards-1)/of.shards)
		of.shards--
		switch {
		case g.most > 0:
			limit, of.most, of.failing = limit-g.most, of.most-g.most, of.failing-g.failing
			chosen = append(chosen, g)
		case limit == 0 && of.most > 0 && !g.isClosed:
			rest = append(rest, g)
		}
	}
	return chosen, rest
}

// takeAll takes users of gates, with a script for each shard.
func (x *Index) takeAll(ctx context.Context, looked *module.Looked, gates []dueGate, lease time.Duration, failed map[int]error) {
	byShard := map[int][]dueGate{}
	for _, g := range gates {
		byShard[g.shard] = append(byShard[g.shard], g)
	}
	masters, shards := x.byMaster(ctx)
	masters = slices.DeleteFunc(masters, func(master *redis.Client) bool {
		return !slices.ContainsFunc(shards[master], func(shard int) bool { return byShard[shard] != nil })
	})
	silent := sideBySide(ctx, x, masters, func(ctx context.Context, master *redis.Client) *taken {
		return x.takeFrom(ctx, shards[master], byShard, lease)
	}, func(part *taken) {
		looked.Users, looked.Late = append(looked.Users, part.Users...), max(looked.Late, part.Late)
		looked.More = looked.More || part.More
		for shard, err := range part.failed {
			failed[shard] = err
		}
	}, func(part *taken) {
		x.looks.mu.Lock()
		defer x.looks.mu.Unlock()
		x.looks.late = append(x.looks.late, part.Users...)
	})
	for _, master := range silent {
		for _, shard := range shards[master] {
			failed[shard] = unavailable("look", cmp.Or(ctx.Err(), errAway))
		}
	}
}

// taken is what a look took from a master.
type taken struct {
	module.Looked
	failed map[int]error
}

func (x *Index) takeFrom(ctx context.Context, shards []int, byShard map[int][]dueGate, lease time.Duration) *taken {
	all := &taken{failed: map[int]error{}}
	var calls []*redisclient.Call
	var commands []*redisclient.Command
	shards = slices.DeleteFunc(slices.Clone(shards), func(shard int) bool { return byShard[shard] == nil })
	for _, shard := range shards {
		args := newIndexArgs(x, shard)
		for _, g := range byShard[shard] {
			args.gate(g.gate)
			args.entries = append(args.entries, g.most, g.failing)
		}
		args.entries = append(args.entries, microseconds(lease))
		call := args.call(take)
		calls, commands = append(calls, call), append(commands, call.Command())
	}
	for i, err := range x.writer.Do(ctx, commands...) {
		var reply []any
		if err == nil {
			reply, err = sliceOf(calls[i])
		}
		if of := byShard[shards[i]]; err == nil && len(reply) != 1+2*len(of) {
			err = unavailable("look", fmt.Errorf("%d replies", len(reply)))
		}
		if err != nil {
			all.failed[shards[i]] = err
			continue
		}
		now := micros(reply[0])
		for n, g := range byShard[shards[i]] {
			before := len(all.Users)
			all.add(x, g, now, lease, reply[1+2*n], true)
			all.add(x, g, now, lease, reply[2+2*n], false)
			all.More = all.More || !g.isClosed && len(all.Users)-before == g.most
		}
	}
	return all
}

// add adds the taken users of a gate.
func (t *taken) add(x *Index, g dueGate, now int64, lease time.Duration, reply any, fails bool) {
	pairs, _ := reply.([]any)
	for i := 0; i+1 < len(pairs); i += 2 {
		user := mxid.UserID(text(pairs[i]))
		x.listings.at(user, g.gate).found(g.shard, now+microseconds(lease))
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
