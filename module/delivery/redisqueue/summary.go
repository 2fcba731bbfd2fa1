package redisqueue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

const (
	summarySample = 64 // backlogs of a shard that are read
	summaryGates  = 32
	summaryUsers  = 3                // QueueSummary.Oldest is how long so many users have waited at a gate
	summaryLasts  = 14 * time.Second // shorter than the time between two calls of a host
	summaryShares = 16               // backlogs of a shard above which hosts share a summary
)

var sampleBacklogs = redisclient.NewScript(sampleScript)

// sampleScript returns the time and the stored summary of a shard. Without a summary, it
// returns the time, an empty text, the number of backlogs, some of them with their records,
// and the error of a write. It writes an empty summary where the last one has expired, to
// find out whether Redis refuses writes.
//
// KEYS: summary, first. ARGV: how many backlogs, and the ms to store the empty summary.
const sampleScript = calls + `
local now, text, refused = tonumber(redis.call('TIME')[1]), try('', 'GET', KEYS[1]), nil
if text and text ~= '' then return {now, text} end
if not text then refused = redis.pcall('SET', KEYS[1], '', 'PX', ARGV[2]).err end
local n, some = redis.call('HLEN', KEYS[2]), {}
if n > 0 then some = redis.call('HRANDFIELD', KEYS[2], ARGV[1], 'WITHVALUES') end
return {now, '', n, some, refused or ''}`

// Summary implements [module.DeliveryQueue]. Hosts share the summaries of large shards.
func (q *Queue) Summary(ctx context.Context, isAlone func(module.Trouble) bool) (module.QueueSummary, error) {
	calls := make([]*redisclient.Call, q.shards.Load())
	if len(calls) == 0 {
		return module.QueueSummary{}, unavailable("summarize", errors.New("it was not opened"))
	}
	for shard := range calls {
		keys := []string{q.keys.ShardSummary(shard), q.keys.ShardFirst(shard)}
		calls[shard] = sampleBacklogs.Call(keys, summarySample, summaryLasts.Milliseconds())
	}
	if err := cmp.Or(q.run(ctx, calls...)...); err != nil {
		return module.QueueSummary{}, err
	}
	var all, sampled []*shardSample
	for shard, call := range calls {
		s, err := readSample(shard, call.Reply)
		if err != nil {
			return module.QueueSummary{}, unavailable("summarize", err)
		}
		if all = append(all, s); s.backlogs > 0 {
			sampled = append(sampled, s)
		}
	}
	if err := q.readSamples(ctx, sampled, isAlone); err != nil {
		return module.QueueSummary{}, err
	}
	summary := addUp(all)
	summary.Refused = cmp.Or(summary.Refused, q.share(ctx, sampled))
	return summary, nil
}

// shardSample has a sample of a shard's backlogs, or its stored summary.
type shardSample struct {
	shard    int
	now      int64 // of Redis, in seconds
	backlogs int64
	targets  []string
	records  []string
	refused  error // the error of Redis, if it refuses writes

	summary shardSummary
}

// shardSummary is the summary of a shard, which hosts share as JSON.
type shardSummary struct {
	Notifications int                `json:"n"`
	Gates         map[string]int     `json:"g"`
	Since         map[string][]int64 `json:"s"` // by gate, when users' oldest notifications were added, in seconds
}

// readSample reads a reply of sampleScript.
func readSample(shard int, reply *redis.Cmd) (*shardSample, error) {
	parts, err := reply.Slice()
	if err != nil || len(parts) != 2 && len(parts) != 5 {
		return nil, fmt.Errorf("%d replies: %w", len(parts), err)
	}
	s := &shardSample{shard: shard}
	s.now, _ = parts[0].(int64)
	if len(parts) == 2 {
		text, _ := parts[1].(string)
		return s, json.Unmarshal([]byte(text), &s.summary)
	}
	s.backlogs, _ = parts[2].(int64)
	if text, _ := parts[4].(string); text != "" {
		s.refused = unavailable("summarize", refusal(text))
	}
	pairs := textsIn(parts[3])
	for i := 0; i+1 < len(pairs); i += 2 {
		s.targets, s.records = append(s.targets, pairs[i]), append(s.records, pairs[i+1])
	}
	return s, nil
}

// refusal is an error of Redis that a script returns as a text.
type refusal string

func (r refusal) Error() string { return string(r) }

// RedisError marks an error of Redis, as in go-redis.
func (refusal) RedisError() {}

// addUp adds up the summaries of shards. All pushers of a user are in one shard.
func addUp(shards []*shardSample) module.QueueSummary {
	all, ages := module.QueueSummary{Gates: map[string]int{}}, map[string][]int64{}
	for _, s := range shards {
		all.Notifications += s.summary.Notifications
		all.Refused = cmp.Or(all.Refused, s.refused)
		for gate, n := range s.summary.Gates {
			all.Gates[gate] += n
		}
		for gate, since := range s.summary.Since {
			for _, at := range since {
				ages[gate] = append(ages[gate], s.now-at)
			}
		}
	}
	for gate, of := range ages {
		need := summaryUsers
		if gate == module.FanOut { // its events are for many users
			need = 1
		}
		if len(of) >= need {
			slices.Sort(of)
			all.Oldest = max(all.Oldest, time.Duration(of[len(of)-need])*time.Second)
		}
	}
	return all
}

// readSamples reads how many notifications the sampled backlogs have, and their troubles.
func (q *Queue) readSamples(ctx context.Context, all []*shardSample, isAlone func(module.Trouble) bool) error {
	var commands []*redisclient.Command
	lengths, troubles := make([][]*redis.IntCmd, len(all)), make([]*redis.SliceCmd, len(all))
	for n, s := range all {
		lengths[n] = make([]*redis.IntCmd, len(s.targets))
		for i, target := range s.targets {
			key := q.keys.More(s.shard, target)
			commands = append(commands, command(key, &lengths[n][i], func(ctx context.Context, to redisclient.Sender) *redis.IntCmd { return to.LLen(ctx, key) }))
		}
		key := q.keys.ShardTrouble(s.shard)
		commands = append(commands, command(key, &troubles[n], func(ctx context.Context, to redisclient.Sender) *redis.SliceCmd {
			return to.HMGet(ctx, key, s.targets...)
		}))
	}
	if err := unlessWrongType(q.read(ctx, commands...)); err != nil {
		return err
	}
	for n, s := range all {
		s.summarize(lengths[n], textsIn(troubles[n].Val()), isAlone)
	}
	return nil
}

// summarize makes the summary of a sample.
func (s *shardSample) summarize(more []*redis.IntCmd, troubles []string, isAlone func(module.Trouble) bool) {
	gates, total := s.byGate(more, troubles, isAlone)
	scale := float64(s.backlogs) / float64(max(1, len(s.targets)))
	s.summary = shardSummary{int(float64(total) * scale), map[string]int{}, map[string][]int64{}}
	names := slices.SortedFunc(maps.Keys(gates), func(a, b string) int {
		return cmp.Or(len(gates[b].since)-len(gates[a].since), gates[b].notifications-gates[a].notifications, strings.Compare(a, b))
	})
	for _, gate := range names[:min(len(names), summaryGates)] {
		if gate != module.FanOut {
			s.summary.Gates[gate] = int(float64(gates[gate].notifications) * scale)
		}
		times := slices.Sorted(maps.Values(gates[gate].since))
		s.summary.Since[gate] = times[:min(len(times), summaryUsers)]
	}
}

// byGate adds up the sampled backlogs of each gate. Total is the number of their
// notifications.
func (s *shardSample) byGate(
	more []*redis.IntCmd, troubles []string, isAlone func(module.Trouble) bool,
) (gates map[string]*gateSample, total int) {
	gates = map[string]*gateSample{}
	for i, target := range s.targets {
		n := 1 + int(more[i].Val())
		total += n
		gate, entry, _ := stored.ReadFirstEntry(s.records[i])
		e, found := stored.ReadBacklogEntry(entry)
		if !found {
			continue
		}
		if gates[gate] == nil {
			gates[gate] = &gateSample{since: map[string]int64{}}
		}
		gates[gate].notifications += n
		claim := module.Claim{Target: module.Target{Name: target}}
		if i < len(troubles) && isAlone(backlog(claim, "", troubles[i]).Trouble) { // no troubles if the key has another type
			continue
		}
		gates[gate].add(e)
	}
	return gates, total
}

// gateSample is the part of a sample at a gate.
type gateSample struct {
	notifications int
	since         map[string]int64 // by user, when the oldest was added, in seconds
}

func (g *gateSample) add(e stored.BacklogEntry) {
	if at, known := g.since[e.User]; !known || e.Added < at {
		g.since[e.User] = e.Added
	}
}

// share stores the summaries of large shards.
func (q *Queue) share(ctx context.Context, all []*shardSample) error {
	var commands []*redisclient.Command
	for _, s := range all {
		if s.backlogs <= summaryShares {
			continue
		}
		key := q.keys.ShardSummary(s.shard)
		text, _ := json.Marshal(s.summary) // strings and numbers
		var stored *redis.StatusCmd
		commands = append(commands, command(key, &stored, func(ctx context.Context, to redisclient.Sender) *redis.StatusCmd {
			return to.Set(ctx, key, string(text), summaryLasts)
		}))
	}
	return cmp.Or(q.writer.Do(ctx, commands...)...)
}
