package redisqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

// maxGates is how many gates of a shard a look reads. The next look reads the next ones,
// so that many closed gates do not hide an open one.
const maxGates = 256

// The limit of a look is divided by the number of due gates, and bounded by minClaims and
// maxClaims: so many backlogs of a gate in a shard may be claimed. Lua passes at most about
// 3,900 pairs of values to a command.
const (
	minClaims = 4
	maxClaims = 1000
)

// dueGate is a gate with due backlogs in a shard.
type dueGate struct {
	shard int
	gate  string
	late  time.Duration
	share
}

// share limits what one call of [Queue.Claim] takes of a gate.
type share struct {
	most     int // backlogs
	isClosed bool
}

// Claim implements [module.DeliveryQueue]. It finds the due gates of the shards in one
// round trip, and claims in another.
func (q *Queue) Claim(ctx context.Context, look module.Look) (module.Claimed, error) {
	if q.shards.Load() == 0 {
		return module.Claimed{}, unavailable("claim", errors.New("it was not opened"))
	}
	began, failing := time.Now(), map[int]error{}
	shards, over := q.looks.begin(look.Shards)
	gates, more := q.findDue(ctx, shards, over, failing)
	chosen, rest := choose(gates, look)
	claimed := q.claimAll(ctx, chosen, look.Lease, failing)
	for _, g := range rest {
		claimed.Oldest = max(claimed.Oldest, g.late)
		more = append(more, g.shard)
	}
	claimed.More = append(append(claimed.More, more...), q.relist(ctx)...)
	slices.Sort(claimed.More)
	claimed.More = slices.Compact(claimed.More)
	claimed.Oldest = max(claimed.Oldest, q.looks.note(shards, began, failing))
	if len(claimed.Backlogs) == 0 {
		for _, err := range failing {
			return claimed, err
		}
	}
	return claimed, nil
}

// choose decides how many backlogs of each gate to claim. Rest are the open gates for
// which the limit has no place.
func choose(gates []dueGate, look module.Look) (chosen, rest []dueGate) {
	allowed := map[string]share{}
	gates = slices.DeleteFunc(gates, func(g dueGate) bool {
		of, known := allowed[g.gate]
		if !known {
			of.most, of.isClosed = look.Gate(g.gate)
			allowed[g.gate] = of
		}
		return of.most <= 0
	})
	slices.SortFunc(gates, func(a, b dueGate) int { return cmp.Compare(b.late, a.late) })
	limit, most := look.Limit, min(maxClaims, max(minClaims, look.Limit/max(1, len(gates))))
	for _, g := range gates {
		g.share = allowed[g.gate]
		switch g.most = min(most, limit, g.most); {
		case g.most > 0:
			limit -= g.most
			allowed[g.gate] = share{allowed[g.gate].most - g.most, g.isClosed}
			chosen = append(chosen, g)
		case limit == 0 && !g.isClosed:
			rest = append(rest, g)
		}
	}
	return chosen, rest
}

// looks has, for each shard, the time of the last look that had no error, and how many
// gates the next look passes over.
type looks struct {
	mu   sync.Mutex
	good []time.Time
	over []int
}

func (l *looks) open(shards int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.good, l.over = slices.Repeat([]time.Time{time.Now()}, shards), make([]int, shards)
}

// begin returns the shards of a look, and how many gates of each to pass over.
func (l *looks) begin(wanted []int) (shards, over []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for shard, n := range l.over {
		if wanted == nil || slices.Contains(wanted, shard) {
			shards, over = append(shards, shard), append(over, n)
		}
	}
	return shards, over
}

// note adds a look, and returns the longest time without a good one.
func (l *looks) note(shards []int, began time.Time, failing map[int]error) (longest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, shard := range shards {
		if failing[shard] == nil {
			l.good[shard] = began
		} else {
			longest = max(longest, began.Sub(l.good[shard]))
		}
	}
	return longest
}

// read notes how many gates of a shard were read, and reports whether there may be more.
func (l *looks) read(shard, n int) (more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if more = n == maxGates; more {
		l.over[shard] += n
	} else {
		l.over[shard] = 0
	}
	return more
}

// findDue returns the due gates of shards, and the shards that may have more.
func (q *Queue) findDue(ctx context.Context, shards, over []int, failing map[int]error) (all []dueGate, more []int) {
	calls := make([]*redisclient.Call, len(shards))
	for i, shard := range shards {
		calls[i] = due.Call([]string{q.keys.ShardGates(shard)}, over[i], maxGates)
	}
	for i, failed := range q.run(ctx, calls...) {
		shard := shards[i]
		var in []dueGate
		if failed == nil {
			in, failed = readDue(shard, calls[i].Reply)
		}
		if failed != nil { // the other shards go on
			failing[shard] = failed
			continue
		}
		if q.looks.read(shard, len(in)) {
			more = append(more, shard)
		}
		all = append(all, in...)
	}
	return all, more
}

func readDue(shard int, reply *redis.Cmd) ([]dueGate, error) {
	parts, err := reply.Slice()
	if err != nil || len(parts) != 2 {
		return nil, unavailable("claim", fmt.Errorf("%d replies: %w", len(parts), err))
	}
	now := timeOf(parts[0])
	pairs, _ := parts[1].([]any)
	var all []dueGate
	for i := 0; i+1 < len(pairs); i += 2 {
		gate, _ := pairs[i].(string)
		all = append(all, dueGate{shard: shard, gate: gate, late: max(0, time.Duration(now-timeOf(pairs[i+1]))*time.Microsecond)})
	}
	return all, nil
}

// timeOf reads a time in microseconds, 0 if it is none.
func timeOf(reply any) int64 {
	text, _ := reply.(string)
	at, _ := strconv.ParseFloat(text, 64)
	return int64(at)
}

// claimAll claims due backlogs of gates, with a script for each shard.
func (q *Queue) claimAll(ctx context.Context, gates []dueGate, lease time.Duration, failing map[int]error) (all module.Claimed) {
	byShard := map[int][]dueGate{}
	for _, g := range gates {
		byShard[g.shard] = append(byShard[g.shard], g)
	}
	micros := microseconds(lease)
	var claiming [][]dueGate
	var calls []*redisclient.Call
	for shard, of := range byShard {
		keys, args := []string{q.keys.ShardGates(shard), q.keys.ShardFirst(shard), q.keys.ShardTrouble(shard)}, []any{micros}
		for _, g := range of {
			keys, args = append(keys, q.keys.Due(shard, g.gate)), append(args, g.gate, g.most)
		}
		claiming, calls = append(claiming, of), append(calls, claim.Call(keys, args...))
	}
	for i, failed := range q.run(ctx, calls...) {
		if failed != nil {
			failing[claiming[i][0].shard] = failed
			continue
		}
		readClaims(&all, claiming[i], calls[i].Reply, micros)
	}
	return all
}

// readClaims reads the reply of claimScript.
func readClaims(all *module.Claimed, gates []dueGate, reply *redis.Cmd, lease int64) {
	parts, _ := reply.Slice()
	if len(parts) != 2 {
		return
	}
	token, _ := parts[0].(int64)
	results, _ := parts[1].([]any)
	for i, result := range results[:min(len(gates), len(results))] {
		fields, _ := result.([]any)
		if len(fields) != 4 {
			continue
		}
		if earliest := timeOf(fields[0]); earliest > 0 && !gates[i].isClosed {
			all.Oldest = max(all.Oldest, time.Duration(token-lease-earliest)*time.Microsecond)
		}
		targets, records, troubles := textsIn(fields[1]), textsIn(fields[2]), textsIn(fields[3])
		for n, name := range targets {
			c := module.Claim{Target: module.Target{Shard: gates[i].shard, Name: name}, Gate: gates[i].gate, Token: token}
			b := backlog(c, records[n], troubles[n])
			b.Due = time.UnixMicro(token)
			all.Backlogs = append(all.Backlogs, b)
		}
		if len(targets) == gates[i].most && !gates[i].isClosed {
			all.More = append(all.More, gates[i].shard)
		}
	}
}

func textsIn(reply any) []string {
	values, _ := reply.([]any)
	texts := make([]string, len(values))
	for i, value := range values {
		texts[i], _ = value.(string)
	}
	return texts
}

// backlog returns a backlog from the records of its first notification and its trouble.
func backlog(c module.Claim, record, trouble string) module.Backlog {
	_, entry, _ := stored.ReadFirstEntry(record)
	b := module.Backlog{Claim: c, First: notification(entry)}
	b.Claim.First = b.First.ID
	number, text, _ := strings.Cut(trouble, " ")
	if c.Target.IsFanOut() {
		b.From, _ = strconv.Atoi(number)
	} else {
		b.Trouble.Text = text
		b.Trouble.Generation, _ = strconv.ParseInt(number, 10, 64)
	}
	return b
}

// notification reads an entry, without its text. For an invalid entry, it returns only
// the ID, with which it can be removed.
func notification(entry string) module.Notification {
	e, found := stored.ReadBacklogEntry(entry)
	if !found {
		return module.Notification{ID: entry[min(1, len(entry)):min(17, len(entry))]}
	}
	return module.Notification{ID: e.ID, Priority: module.Priority(e.Priority), Room: e.Room, Meta: e.Meta}
}

// Read implements [module.DeliveryQueue]. It fetches the text of the claim's first
// notification ahead, so a backlog of one takes one round trip.
func (q *Queue) Read(ctx context.Context, c module.Claim, limit int) (all []module.Notification, err error) {
	shard, target := c.Target.Shard, c.Target.Name
	first, more, texts := q.keys.ShardFirst(shard), q.keys.More(shard, target), q.keys.ShardTexts(shard)
	var record *redis.StringCmd
	others, ahead := &redis.StringSliceCmd{}, &redis.StringCmd{}
	commands := []*redisclient.Command{command(first, &record, func(ctx context.Context, to redisclient.Sender) *redis.StringCmd {
		return to.HGet(ctx, first, target)
	})}
	if limit > 1 {
		commands = append(commands, command(more, &others, func(ctx context.Context, to redisclient.Sender) *redis.StringSliceCmd {
			return to.LRange(ctx, more, 0, int64(limit-2))
		}))
	}
	if c.First != "" {
		commands = append(commands, command(texts, &ahead, func(ctx context.Context, to redisclient.Sender) *redis.StringCmd {
			return to.HGet(ctx, texts, stored.TextField(target, c.First))
		}))
	}
	if err := unlessWrongType(q.read(ctx, commands...)); err != nil {
		return nil, err
	}
	_, entry, found := stored.ReadFirstEntry(record.Val())
	if !found && record.Val() == "" {
		return nil, nil
	}
	for _, entry := range append([]string{entry}, others.Val()...) {
		all = append(all, notification(entry))
	}
	rest := all
	if all[0].ID == c.First {
		all[0].Text, rest = ahead.Val(), all[1:]
	}
	return all, q.readTexts(ctx, c.Target, rest)
}

func (q *Queue) readTexts(ctx context.Context, t module.Target, all []module.Notification) error {
	if len(all) == 0 {
		return nil
	}
	key, fields := q.keys.ShardTexts(t.Shard), make([]string, len(all))
	for i, n := range all {
		fields[i] = stored.TextField(t.Name, n.ID)
	}
	var texts *redis.SliceCmd
	if err := q.read(ctx, command(key, &texts, func(ctx context.Context, to redisclient.Sender) *redis.SliceCmd {
		return to.HMGet(ctx, key, fields...)
	})); err != nil {
		return unlessWrongType(err)
	}
	for i, text := range textsIn(texts.Val()) {
		all[i].Text = text
	}
	return nil
}

// Postpone implements [module.DeliveryQueue].
func (q *Queue) Postpone(ctx context.Context, c module.Claim, gate string, delay time.Duration, trouble *module.Trouble) error {
	mode, text := "keep", ""
	if trouble != nil {
		mode, text = "set", troubleText(*trouble)
	}
	shard := c.Target.Shard
	keys := []string{
		q.keys.ShardGates(shard), q.keys.ShardFirst(shard), q.keys.ShardTrouble(shard), q.keys.Due(shard, c.Gate), q.keys.Due(shard, gate),
	}
	done, err := q.number(ctx, postpone, keys, c.Target.Name, c.Token, max(0, delay.Microseconds()), mode, text, gate)
	if err == nil && done == 0 {
		err = module.ErrFenced
	}
	return err
}

// troubleText returns the stored form, which begins with the generation.
func troubleText(t module.Trouble) string {
	if t.Text == "" {
		return ""
	}
	return strconv.FormatInt(t.Generation, 10) + " " + t.Text
}

// Renew implements [module.DeliveryQueue].
func (q *Queue) Renew(ctx context.Context, c module.Claim, by time.Duration) (module.Claim, error) {
	next := c
	next.Token += max(2, by.Microseconds()/2*2)
	done, err := q.number(ctx, renew, []string{q.keys.Due(c.Target.Shard, c.Gate)}, c.Target.Name, c.Token, next.Token)
	switch {
	case err != nil:
		return c, err
	case done == 0:
		return c, module.ErrFenced
	}
	return next, nil
}

// Drop implements [module.DeliveryQueue].
func (q *Queue) Drop(ctx context.Context, c module.Claim) (dropped int, err error) {
	return q.number(ctx, drop, q.dropKeys(c), c.Target.Name, c.Token, c.Gate)
}

func (q *Queue) dropKeys(c module.Claim) []string {
	shard, target := c.Target.Shard, c.Target.Name
	return []string{
		q.keys.ShardFirst(shard), q.keys.ShardTexts(shard), q.keys.ShardTrouble(shard), q.keys.ShardBytes(shard), q.keys.Due(shard, c.Gate),
		q.keys.More(shard, target), q.keys.Sent(shard, target), q.keys.ShardGates(shard),
	}
}
