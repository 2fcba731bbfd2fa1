package redisqueue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redisclient"
)

const (
	summarySample = 128 // backlogs of a shard that are read
	summaryGates  = 32
	summaryLasts  = 14 * time.Second // shorter than the time between two calls of a host
	summaryShares = 16               // backlogs of a shard above which hosts share a summary
)

var (
	sampleBacklogs = redisclient.NewScript(sampleScript)
	summarize      = redisclient.NewScript(summarizeScript)
)

// sampleScript returns the time, and a stored summary or else the number of backlogs and
// some of their names: those with the earliest and those with the latest due times. Once
// in a while it stores an empty summary, and so fails if Redis refuses writes.
//
// KEYS: summary, due. ARGV: how many, and the ms to store the empty summary.
const sampleScript = try + `
local now, text = tonumber(redis.call('TIME')[1]), try('', 'GET', KEYS[1])
if text and text ~= '' then return {now, text} end
if not text then redis.call('SET', KEYS[1], '', 'PX', ARGV[2]) end
local n, half = redis.call('ZCOUNT', KEYS[2], '-inf', '+inf'), ARGV[1] / 2
local names = redis.call('ZRANGE', KEYS[2], 0, half - 1)
local last = redis.call('ZRANGE', KEYS[2], math.max(half, n - half), -1)
for _, name in ipairs(last) do names[#names + 1] = name end
return {now, '', n, names}`

// summarizeScript summarizes a shard. KEYS: summary, the sampled backlogs. ARGV: the number
// of backlogs, the number of gates, and for how many ms to store the summary (0: not at
// all). Its first line has the number of waiting notifications and the time at which the
// oldest was added. Each other line has the number for one gate, and the gate in JSON.
const summarizeScript = try + `
local all, oldest, gates, names = 0, 0, {}, {}
for i = 2, #KEYS do
	local n, first = try(0, 'LLEN', KEYS[i]), try(false, 'LINDEX', KEYS[i], 0)
	if first then
		all = all + n
		local added = tonumber(string.sub(first, 40, 49)) or 0
		if added > 0 and (oldest == 0 or added < oldest) then oldest = added end
		local gate = string.match(first, '"g":("[^"]*")', 50)
		if gate then
			if not gates[gate] then names[#names + 1] = gate end
			gates[gate] = (gates[gate] or 0) + n
		end
	end
end
local scale = math.max(1, ARGV[1] / math.max(1, #KEYS - 1))
table.sort(names, function(a, b) return gates[a] > gates[b] end)
local lines = {string.format('%.0f %.0f', all * scale, oldest)}
for i = 1, math.min(#names, ARGV[2]) do lines[i + 1] = string.format('%.0f ', gates[names[i]] * scale) .. names[i] end
local text = table.concat(lines, '\n')
if ARGV[3] ~= '0' then redis.call('SET', KEYS[1], text, 'PX', ARGV[3]) end
return text`

// Summary implements [module.DeliveryQueue]. Hosts share the summaries of large shards.
func (q *Queue) Summary(ctx context.Context) (module.QueueSummary, error) {
	calls := make([]*redisclient.Call, q.shards.Load())
	if len(calls) == 0 {
		return module.QueueSummary{}, unavailable("summarize", errors.New("it was not opened"))
	}
	for shard := range calls {
		calls[shard] = sampleBacklogs.Call([]string{q.keys.ShardSummary(shard), q.keys.ShardDue(shard)}, summarySample, summaryLasts.Milliseconds())
	}
	if err := cmp.Or(q.run(ctx, calls...)...); err != nil {
		return module.QueueSummary{}, err
	}
	var shards []*shardSummary
	for shard, call := range calls {
		s, err := readSample(shard, call.Reply)
		if err != nil {
			return module.QueueSummary{}, err
		}
		if s.text != "" || len(s.names) > 0 {
			shards = append(shards, s)
		}
	}
	if err := q.summarize(ctx, shards); err != nil {
		return module.QueueSummary{}, err
	}
	return sum(shards)
}

// shardSummary has the text of summarizeScript, or a sample of a shard's backlogs.
type shardSummary struct {
	shard    int
	now      int64 // of Redis, in seconds
	text     string
	backlogs int64
	names    []any
}

// readSample reads a reply of sampleScript.
func readSample(shard int, reply *redis.Cmd) (*shardSummary, error) {
	parts, err := reply.Slice()
	if err != nil || len(parts) != 2 && len(parts) != 4 {
		return nil, unavailable("summarize", fmt.Errorf("%d replies: %w", len(parts), err))
	}
	s := &shardSummary{shard: shard}
	s.now, _ = parts[0].(int64)
	s.text, _ = parts[1].(string)
	if len(parts) == 4 {
		s.backlogs, _ = parts[2].(int64)
		s.names, _ = parts[3].([]any)
	}
	return s, nil
}

// summarize asks for the texts of shards without one.
func (q *Queue) summarize(ctx context.Context, shards []*shardSummary) error {
	var sampled []*shardSummary
	var calls []*redisclient.Call
	for _, s := range shards {
		if s.text != "" {
			continue
		}
		keys, lasts := []string{q.keys.ShardSummary(s.shard)}, time.Duration(0)
		for _, name := range s.names {
			keys = append(keys, q.keys.Backlog(s.shard, fmt.Sprint(name)))
		}
		if s.backlogs > summaryShares {
			lasts = summaryLasts
		}
		sampled, calls = append(sampled, s), append(calls, summarize.Call(keys, s.backlogs, summaryGates, lasts.Milliseconds()))
	}
	if err := cmp.Or(q.run(ctx, calls...)...); err != nil {
		return err
	}
	for i, s := range sampled {
		s.text, _ = calls[i].Reply.Text()
	}
	return nil
}

func sum(shards []*shardSummary) (all module.QueueSummary, err error) {
	all.Gates = map[string]int{}
	for _, s := range shards {
		first, gates, _ := strings.Cut(s.text, "\n")
		var notifications int
		var oldest int64
		if _, err := fmt.Sscan(first, &notifications, &oldest); err != nil {
			return all, unavailable("summarize", err)
		}
		all.Notifications += notifications
		if oldest > 0 {
			all.Oldest = max(all.Oldest, time.Duration(s.now-oldest)*time.Second)
		}
		for line := range strings.Lines(gates) {
			count, text, _ := strings.Cut(line, " ")
			var gate string
			if n, err := strconv.Atoi(count); err == nil && json.Unmarshal([]byte(text), &gate) == nil {
				all.Gates[gate] += n
			}
		}
	}
	return all, nil
}
