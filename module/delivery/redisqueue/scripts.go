package redisqueue

import "github.com/redis/go-redis/v9"

// Scripts have all their keys in KEYS, which are in one slot. To send one twice is
// as to send it once: the client does so when an answer gets lost.
//
// Redis hashes every byte that a script gets: so the data of entries, which may be
// large, are added and read without one.

var (
	evict      = redis.NewScript(evictScript)
	acquire    = redis.NewScript(acquireScript)
	release    = redis.NewScript(releaseScript)
	checkpoint = redis.NewScript(checkpointScript)
	removeHeld = redis.NewScript(removeHeldScript)
	join       = redis.NewScript(joinScript)
	share      = redis.NewScript(shareScript)
)

// now is the time of Redis in milliseconds, the one clock that all hosts have.
const now = `
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
`

// evictScript bounds a log that has grown too long.
//
// KEYS: the log, the state. ARGV: how many entries stay.
const evictScript = `
local evicted = redis.call('XTRIM', KEYS[1], 'MAXLEN', ARGV[1])
if evicted > 0 then redis.call('HINCRBY', KEYS[2], 'evicted', evicted) end
return 1`

// acquireScript takes the lease of a shard, or renews it. A lease that ends later
// than it was taken for is of a clock that has gone back since.
//
// The epoch is the time in microseconds, where that is greater than the last
// epoch, and a random number is added: so one that was lost in a failover does not
// come again, though the clock of the new master be behind.
//
// KEYS: the state, the log, the instructions. ARGV: the host, how long the lease
// lasts, in milliseconds, and the random number. It returns whether the host holds it, the epoch,
// the position of the last entry, how many entries the log has lost, and all
// instructions and answers.
const acquireScript = now + `
local state = redis.call('HMGET', KEYS[1], 'owner', 'epoch', 'ends', 'lasts', 'evicted')
local epoch, ends, lasts = tonumber(state[2] or 0), tonumber(state[3] or 0), tonumber(state[4] or 0)
if ends > now + lasts then
	ends = now + lasts
	redis.call('HSET', KEYS[1], 'ends', ends)
end
if state[1] and state[1] ~= ARGV[1] and ends > now then
	return {0, '', '', '0', {}}
end
if state[1] ~= ARGV[1] or ends <= now then
	epoch = math.max(epoch, time[1] * 1000000 + time[2]) + ARGV[3]
	redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'epoch', string.format('%.0f', epoch), 'number', 0)
end
redis.call('HSET', KEYS[1], 'ends', now + ARGV[2], 'lasts', ARGV[2])
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
return {1, string.format('%.0f', epoch), last and last[1] or '', state[5] or '0',
	redis.call('HGETALL', KEYS[3])}`

// releaseScript gives a lease back.
//
// KEYS: the state. ARGV: the host, the epoch.
const releaseScript = `
local state = redis.call('HMGET', KEYS[1], 'owner', 'epoch')
if state[1] == ARGV[1] and state[2] == ARGV[2] then
	redis.call('HDEL', KEYS[1], 'owner', 'ends', 'lasts')
end
return 1`

// checkpointScript keeps what the owner of a shard has achieved. One that comes
// late, behind the next of the same owner, changes nothing.
//
// KEYS: the state, what is held, the log, the instructions. ARGV: the epoch, the
// number of the checkpoint, 1 if what is finished is another than before, that, how
// many entries are done, how many members are to be removed, how many instructions are
// answered, the positions of those entries, those members, for each answer the field of
// the instruction, its own and the answer, and then members to be set with their
// values. It returns 0 if the owner is another.
const checkpointScript = `
local state = redis.call('HMGET', KEYS[1], 'epoch', 'number')
if state[1] ~= ARGV[1] then return 0 end
if tonumber(state[2] or 0) > tonumber(ARGV[2]) then return 1 end
if ARGV[3] == '1' then
	redis.call('HSET', KEYS[1], 'number', ARGV[2], 'finished', ARGV[4])
else
	redis.call('HSET', KEYS[1], 'number', ARGV[2])
end
local members = 8 + ARGV[5]
local answers = members + ARGV[6]
local set = answers + 3 * ARGV[7]
for i = 8, members - 1 do redis.call('XDEL', KEYS[3], ARGV[i]) end
for i = members, answers - 1 do redis.call('HDEL', KEYS[2], ARGV[i]) end
for i = answers, set - 1, 3 do
	if redis.call('HGET', KEYS[4], ARGV[i]) then
		redis.call('HSET', KEYS[4], ARGV[i + 1], ARGV[i + 2]) -- first, so that the key keeps its expiry
		redis.call('HDEL', KEYS[4], ARGV[i])
	end
end
for i = set, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
return 1`

// removeHeldScript removes a member of what is held.
//
// KEYS: what is held. ARGV: the member, its value. It returns 0 if it has another
// value, or none.
const removeHeldScript = `
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])`

// joinScript says that a host lives for a while. Hosts that are said to live much
// longer are of a clock that has gone back since.
//
// KEYS: the hosts. ARGV: the host, and how long, in milliseconds. It returns all
// hosts.
const joinScript = now + `
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZREMRANGEBYSCORE', KEYS[1], now + 10 * ARGV[2], '+inf')
return redis.call('ZRANGE', KEYS[1], 0, -1)`

// shareScript says how gateways have changed at a host. Records that last much
// longer than any can be told to are of a clock that has gone back since.
//
// KEYS: the gateways. ARGV: how long what is told lasts, in milliseconds, how many
// records there may be, and for each change the gateway, its state, how long it
// waits, in milliseconds, the status of its last answer, and 1 for Retry. It returns all
// gateways with their records; see [stored.GatewayRecord].
const shareScript = now + `
local all, known, count = redis.call('HGETALL', KEYS[1]), {}, 0
for i = 1, #all, 2 do
	local expires, state, since, ends, status = string.match(all[i + 1], '^(%d+) (%a+) (%d+) (%d+) (%d+)$')
	expires = tonumber(expires or 0)
	if expires ~= 0 and (expires <= now or expires > now + 7200000) then
		redis.call('HDEL', KEYS[1], all[i])
	else
		known[all[i]] = {state = state, since = since, ends = tonumber(ends or 0), status = status, stays = expires == 0}
		count = count + 1
	end
end
for i = 3, #ARGV, 5 do
	local name, state, record = ARGV[i], ARGV[i + 1], known[ARGV[i]]
	if record and ARGV[i + 4] == '1' then record.ends = 0 end
	local waits = record and record.ends > now
	if record and record.stays then
		-- an operator's
	elseif state == 'open' then
		if record and not waits then redis.call('HDEL', KEYS[1], name) end
	elseif record or state ~= '' and count < tonumber(ARGV[2]) then
		if not record then
			record = {since = string.format('%.0f', now), ends = 0}
			count = count + 1
		end
		if state == 'waiting' then
			record.ends = math.max(record.ends, now + ARGV[i + 2])
		end
		if state == 'waiting' or state == 'closed' and not waits then
			record.state, record.status = state, ARGV[i + 3]
		end
		if record.state == 'closed' then record.ends = 0 end
		redis.call('HSET', KEYS[1], name, string.format('%.0f %s %s %.0f %s',
			math.max(now, record.ends) + ARGV[1], record.state, record.since, record.ends, record.status))
	end
end
return redis.call('HGETALL', KEYS[1])`
