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
	summarySample = 128 // backlogs of a shard that are read
	summaryGates  = 32
	summaryLasts  = 14 * time.Second // shorter than the time between two calls of a host
	summaryShares = 16               // backlogs of a shard above which hosts share a summary
)

var (
	sampleBacklogs = redisclient.NewScript(sampleScript)
	sampleOldest   = redisclient.NewScript(oldestScript)
)

// sampleScript returns the time, and a stored summary or else the number of backlogs, some
// of them with their records, and gates with early due times. Once in a while it stores
// an empty summary, and so fails if Redis refuses writes.
//
// KEYS: summary, first, gates. ARGV: how many backlogs, how many gates, and the ms to store
// the empty summary.
const sampleScript = calls + `
local now, text = tonumber(redis.call('TIME')[1]), try('', 'GET', KEYS[1])
if text and text ~= '' then return {now, text} end
if not text then redis.call('SET', KEYS[1], '', 'PX', ARGV[3]) end
local n = redis.call('HLEN', KEYS[2])
if n == 0 then return {now, '', 0, {}, {}} end
return {now, '', n, redis.call('HRANDFIELD', KEYS[2], ARGV[1], 'WITHVALUES'), redis.call('ZRANGE', KEYS[3], 0, ARGV[2] - 1)}`

// oldestScript returns the records of backlogs with early due times. KEYS: first, due of each
// gate. ARGV: how many of each.
const oldestScript = calls + `
local records = {}
for i = 2, #KEYS do
	local targets = redis.call('ZRANGE', KEYS[i], 0, ARGV[1] - 1)
	if #targets > 0 then
		for _, record in ipairs(redis.call('HMGET', KEYS[1], unpack(targets))) do records[#records + 1] = record or '' end
	end
end
return records`

// Summary implements [module.DeliveryQueue]. Hosts share the summaries of large shards.
func (q *Queue) Summary(ctx context.Context) (module.QueueSummary, error) {
	calls := make([]*redisclient.Call, q.shards.Load())
	if len(calls) == 0 {
		return module.QueueSummary{}, unavailable("summarize", errors.New("it was not opened"))
	}
	for shard := range calls {
		keys := []string{q.keys.ShardSummary(shard), q.keys.ShardFirst(shard), q.keys.ShardGates(shard)}
		calls[shard] = sampleBacklogs.Call(keys, summarySample, summaryGates, summaryLasts.Milliseconds())
	}
	if err := cmp.Or(q.run(ctx, calls...)...); err != nil {
		return module.QueueSummary{}, err
	}
	var sampled []*shardSample
	all := module.QueueSummary{Gates: map[string]int{}}
	for shard, call := range calls {
		s, err := readSample(shard, call.Reply)
		switch {
		case err != nil:
			return module.QueueSummary{}, err
		case s.text != "":
			err = s.addStored(&all)
		case s.backlogs > 0:
			sampled = append(sampled, s)
		}
		if err != nil {
			return module.QueueSummary{}, unavailable("summarize", err)
		}
	}
	if err := q.readSamples(ctx, sampled); err != nil {
		return module.QueueSummary{}, err
	}
	for _, s := range sampled {
		s.summary.addTo(&all, s.now)
	}
	return all, q.share(ctx, sampled)
}

// shardSample has a sample of a shard's backlogs, or the text of its summary.
type shardSample struct {
	shard    int
	now      int64 // of Redis, in seconds
	text     string
	backlogs int64
	targets  []string
	records  []string
	gates    []string // with early due times

	summary shardSummary
}

// shardSummary is what hosts share, as JSON.
type shardSummary struct {
	Notifications int            `json:"n"`
	Oldest        int64          `json:"o"` // when it was added, in seconds
	Gates         map[string]int `json:"g"`
}

// readSample reads a reply of sampleScript.
func readSample(shard int, reply *redis.Cmd) (*shardSample, error) {
	parts, err := reply.Slice()
	if err != nil || len(parts) != 2 && len(parts) != 5 {
		return nil, unavailable("summarize", fmt.Errorf("%d replies: %w", len(parts), err))
	}
	s := &shardSample{shard: shard}
	s.now, _ = parts[0].(int64)
	s.text, _ = parts[1].(string)
	if len(parts) == 5 {
		s.backlogs, _ = parts[2].(int64)
		pairs := textsIn(parts[3])
		for i := 0; i+1 < len(pairs); i += 2 {
			s.targets, s.records = append(s.targets, pairs[i]), append(s.records, pairs[i+1])
		}
		s.gates = textsIn(parts[4])
	}
	return s, nil
}

func (s *shardSample) addStored(all *module.QueueSummary) error {
	if err := json.Unmarshal([]byte(s.text), &s.summary); err != nil {
		return err
	}
	s.summary.addTo(all, s.now)
	return nil
}

func (s shardSummary) addTo(all *module.QueueSummary, now int64) {
	all.Notifications += s.Notifications
	if s.Oldest > 0 {
		all.Oldest = max(all.Oldest, time.Duration(now-s.Oldest)*time.Second)
	}
	for gate, n := range s.Gates {
		all.Gates[gate] += n
	}
}

// readSamples reads how many notifications the sampled backlogs have, and, of large shards,
// the oldest ones.
func (q *Queue) readSamples(ctx context.Context, all []*shardSample) error {
	var commands []*redisclient.Command
	lengths, oldest := make([][]*redis.IntCmd, len(all)), make([]*redisclient.Call, len(all))
	var calls []*redisclient.Call
	for n, s := range all {
		lengths[n] = make([]*redis.IntCmd, len(s.targets))
		for i, target := range s.targets {
			key := q.keys.More(s.shard, target)
			commands = append(commands, command(key, &lengths[n][i], func(ctx context.Context, to redisclient.Sender) *redis.IntCmd { return to.LLen(ctx, key) }))
		}
		if s.backlogs <= summarySample {
			continue
		}
		keys := []string{q.keys.ShardFirst(s.shard)}
		for _, gate := range s.gates {
			keys = append(keys, q.keys.Due(s.shard, gate))
		}
		oldest[n] = sampleOldest.Call(keys, max(1, summarySample/max(1, len(s.gates))))
		calls = append(calls, oldest[n])
	}
	if err := cmp.Or(q.tryRead(ctx, commands...), cmp.Or(q.run(ctx, calls...)...)); err != nil {
		return err
	}
	for n, s := range all {
		records := s.records
		if oldest[n] != nil {
			early, _ := oldest[n].Reply.StringSlice()
			records = append(records, early...)
		}
		s.summarize(lengths[n], records)
	}
	return nil
}

// summarize makes the summary of a sample. Records are of the sample and of more backlogs.
func (s *shardSample) summarize(more []*redis.IntCmd, records []string) {
	scale := float64(s.backlogs) / float64(max(1, len(s.targets)))
	gates, total := map[string]int{}, 0
	for i, target := range s.targets {
		n := 1 + int(more[i].Val())
		total += n
		if gate, _, found := stored.ReadFirstEntry(s.records[i]); found && !(module.Target{Name: target}).IsFanOut() {
			gates[gate] += n
		}
	}
	for _, record := range records {
		_, entry, _ := stored.ReadFirstEntry(record)
		if e, found := stored.ReadBacklogEntry(entry); found && (s.summary.Oldest == 0 || e.Added < s.summary.Oldest) {
			s.summary.Oldest = e.Added
		}
	}
	s.summary.Notifications, s.summary.Gates = int(float64(total)*scale), map[string]int{}
	names := slices.SortedFunc(maps.Keys(gates), func(a, b string) int { return cmp.Or(gates[b]-gates[a], strings.Compare(a, b)) })
	for _, gate := range names[:min(len(names), summaryGates)] {
		s.summary.Gates[gate] = int(float64(gates[gate]) * scale)
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
