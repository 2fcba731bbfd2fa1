package redisqueue

import "github.com/pushfx/pushfx/module/redisclient"

// The keys of a script are in one slot. Scripts are idempotent, because the client
// repeats them after a lost answer. Redis hashes every byte that a script gets, so large
// texts do not pass through scripts.
//
// The score of a backlog in the sorted set of a shard is a time in microseconds. An even
// score is the token of a claim, and the time when it lapses. An odd score is the due
// time of an unclaimed backlog.

var (
	enqueue  = redisclient.NewScript(enqueueScript)
	due      = redisclient.NewScript(dueScript)
	claim    = redisclient.NewScript(claimScript)
	complete = redisclient.NewScript(completeScript)
	postpone = redisclient.NewScript(postponeScript)
	renew    = redisclient.NewScript(renewScript)
	drop     = redisclient.NewScript(dropScript)
	retry    = redisclient.NewScript(retryScript)
)

// now is the time of Redis in microseconds, made even.
const now = `
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
now = now - now % 2
`

// try is redis.call with a default for a key of another type, which stops its own pusher
// but not the shard.
const try = `
local function try(default, ...)
	local reply = redis.pcall(...)
	if type(reply) ~= 'table' or not reply.err then return reply end
	if string.find(reply.err, 'WRONGTYPE', 1, true) then return default end
	return redis.call(...)
end
`

// removal has functions on the entries of a backlog; see stored.BacklogEntry.
const removal = try + `
local function isFanOut(target) return string.sub(target, 1, 7) == 'fanout-' end
local function count(bytes, field, by)
	if try(0, 'HINCRBY', bytes, field, by) <= 0 then try(0, 'HDEL', bytes, field) end
end
local function forget(entry, target, texts, bytes)
	try(0, 'HDEL', texts, string.sub(entry, 2, 17))
	local counted = tonumber(string.sub(entry, 34, 39)) or 0
	if counted == 0 then return end
	count(bytes, string.sub(entry, 26, 33), -counted)
	if isFanOut(target) then
		count(bytes, 'fanout--', -counted)
		count(bytes, 'fanout-n', -1)
	end
end
local function finish(target, due, backlog, texts, trouble)
	redis.call('ZREM', due, target)
	redis.call('DEL', backlog, texts)
	try(0, 'HDEL', trouble, target)
end
`

// enqueueScript adds entries to backlogs, after other commands added their texts.
//
// KEYS: seen, due, trouble, bytes, the fan-out of the room; of each addition the backlog,
// its texts. ARGV: 1 a nonce, 2 the window in ms, 3 the lease in us (even), 4 the longest
// backlog, 5 the bytes of a user, 6 the token of the fan-out or 0, 7 from, 8 to, 9 the
// bytes of a room's fan-out, 10 of all, 11 the target of the token, 12 how many seconds an
// entry is kept; of each addition the target, the first 33 bytes of the entry, the bytes of the text, the meta, flags ("c"
// claims, "u" is urgent), the delay in us, the generation. The reply begins with a state:
// 1 added, 0 again, -1 behind, -2 full, -3 fenced.
const enqueueScript = now + removal + `
local lease, longest, share, of = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[11]
local first, fields = 13, 7
-- keeps tells whether a backlog keeps a text: that of its first entry, or one that
-- counts for its user.
local function keeps(backlog, id)
	local entries = redis.pcall('LRANGE', backlog, 0, -1)
	for i, entry in ipairs(entries) do
		if string.sub(entry, 2, 17) == id then return i == 1 or string.sub(entry, 34, 39) ~= '000000' end
	end
	return false
end
local function again(nonce, at)
	local reply, k = {0, 0, 0}, 6
	for i = first, #ARGV, fields do
		local score = redis.call('ZSCORE', KEYS[2], ARGV[i])
		local isOwn = nonce == ARGV[1] and score and tonumber(score) == tonumber(at) + lease
		reply[#reply + 1] = isOwn and tonumber(score) or 0
		local id = string.sub(ARGV[i + 1], 2, 17)
		if not keeps(KEYS[k], id) then redis.pcall('HDEL', KEYS[k + 1], id) end
		k = k + 2
	end
	return reply
end
-- isFull tells whether a room's fan-out must not have more.
local function isFull(ahead)
	local bytes = tonumber(ARGV[first + 2])
	local room = (tonumber(try(false, 'HGET', KEYS[4], string.sub(ARGV[first + 1], 26, 33))) or 0) + bytes
	local all, most = (tonumber(try(false, 'HGET', KEYS[4], 'fanout--')) or 0) + bytes, tonumber(ARGV[10])
	return room > tonumber(ARGV[9]) or all > most and (ahead > 0 or all > 2 * most)
end

local stamp = ARGV[1] .. ' ' .. string.format('%.0f', now)
if ARGV[6] ~= '0' then
	if redis.call('ZSCORE', KEYS[2], of) ~= ARGV[6] then return {-3} end
	local position, nonce, at = string.match(try(false, 'HGET', KEYS[3], of) or '0 - 0', '(%d+) (%S+) (%d+)')
	if position == ARGV[8] and position ~= ARGV[7] then return again(nonce, at) end
	if position ~= ARGV[7] then return {-3} end
	redis.call('HSET', KEYS[3], of, ARGV[8] .. ' ' .. stamp)
else
	if not redis.call('SET', KEYS[1], stamp, 'PX', ARGV[2], 'NX') then
		local nonce, at = string.match(redis.call('GET', KEYS[1]), '(%S+) (%d+)')
		return again(nonce, at)
	end
	local ahead, state = try(0, 'LLEN', KEYS[5]), 0
	if isFanOut(ARGV[first]) then
		if isFull(ahead) then state = -2 end
	elseif ahead > 0 then
		state = -1
	end
	if state < 0 then
		local k = 6
		for i = first, #ARGV, fields do
			redis.pcall('HDEL', KEYS[k + 1], string.sub(ARGV[i + 1], 2, 17))
			k = k + 2
		end
		redis.call('DEL', KEYS[1])
		return {state}
	end
end

-- trim selects the least important entries: counts, then those of low priority, then the
-- oldest of the room with most. Of these it drops the old ones. It never selects the first
-- two, which may be in flight.
local function trim(target, backlog, texts)
	local entries = redis.call('LRANGE', backlog, 0, -1)
	local left, rooms, dropped = #entries - longest, {}, 0
	local before = now / 1000000 - tonumber(ARGV[12])
	if #entries > 10 * longest then before = math.huge end
	local function choose(i)
		if tonumber(string.sub(entries[i], 40, 49)) <= before then
			forget(entries[i], target, texts, KEYS[4])
			redis.call('LSET', backlog, i - 1, '')
			dropped = dropped + 1
		end
		entries[i], left = false, left - 1
	end
	for _, priority in ipairs({'c', 'l'}) do
		for i = 3, #entries do
			if left > 0 and entries[i] and string.sub(entries[i], 1, 1) == priority then choose(i) end
		end
	end
	for i = 3, #entries do
		if entries[i] then
			local room = string.sub(entries[i], 18, 25)
			rooms[room] = rooms[room] or {}
			table.insert(rooms[room], i)
		end
	end
	while left > 0 do
		local most
		for _, room in pairs(rooms) do
			if not most or #room > #most or #room == #most and room[1] < most[1] then most = room end
		end
		choose(table.remove(most, 1))
	end
	redis.call('LREM', backlog, 0, '')
	return dropped
end

local reply, k = {1, 0, 0}, 6
for i = first, #ARGV, fields do
	local target, head, bytes, flags = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 4]
	local backlog, texts, token = KEYS[k], KEYS[k + 1], 0
	local priority, length = string.sub(head, 1, 1), redis.pcall('LLEN', backlog)
	local skipped, begins = type(length) == 'table', length == 0
	if skipped then -- the key has another type
		reply[2] = reply[2] + 1
	elseif length > 0 then
		local last = redis.call('LINDEX', backlog, -1)
		if string.sub(last, 1, 1) == 'c' then
			local score = tonumber(redis.call('ZSCORE', KEYS[2], target) or 1)
			if length > 1 or score % 2 == 1 then
				if priority == 'c' then
					skipped = true
				else -- which has counts, too
					redis.call('RPOP', backlog)
					length = length - 1
					begins = length == 0 and try(0, 'HEXISTS', KEYS[3], target) == 0
				end
			end
		end
	end
	if not skipped then
		local user = string.sub(head, 26, 33)
		if isFanOut(target) then
			count(KEYS[4], user, bytes)
			count(KEYS[4], 'fanout--', bytes)
			count(KEYS[4], 'fanout-n', 1)
		elseif begins then
			bytes = 0
		elseif bytes > 0 and try(0, 'HINCRBY', KEYS[4], user, bytes) > share then
			try(0, 'HINCRBY', KEYS[4], user, -bytes)
			try(0, 'HDEL', texts, string.sub(head, 2, 17))
			bytes = 0
		end
		redis.call('RPUSH', backlog, head .. string.format('%06d%010d', bytes, math.floor(now / 1000000)) .. ARGV[i + 3])
		if begins then
			local score = now + 1 + ARGV[i + 5]
			if string.find(flags, 'c', 1, true) then
				token = now + lease
				score = token
			end
			redis.call('ZADD', KEYS[2], score, target)
		else
			local score = tonumber(redis.call('ZSCORE', KEYS[2], target) or 1)
			if score % 2 == 1 and score > now then
				local trouble = try(false, 'HGET', KEYS[3], target)
				local isNew = trouble and tonumber(string.match(trouble, '^%d+') or 0) < tonumber(ARGV[i + 6])
				if isNew then try(0, 'HDEL', KEYS[3], target) end
				if isNew or string.find(flags, 'u', 1, true) then redis.call('ZADD', KEYS[2], now + 1, target) end
			elseif score == 1 then
				redis.call('ZADD', KEYS[2], now + 1, target)
			end
			if not isFanOut(target) and length + 1 > longest + longest / 5 then
				reply[2] = reply[2] + trim(target, backlog, texts)
			end
		end
	end
	reply[#reply + 1] = token
	k = k + 2
end
if ARGV[6] ~= '0' then
	reply[3] = redis.call('ZCOUNT', KEYS[2], '-inf', now + 1)
end
return reply`

// dueScript finds due backlogs. KEYS: due. ARGV: a limit. It returns the time, and the
// target and score of each.
const dueScript = now + `
return {string.format('%.0f', now), redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'WITHSCORES', 'LIMIT', 0, ARGV[1])}`

// claimScript claims due backlogs. It postpones a backlog of another type by a minute.
//
// KEYS: due, trouble, the backlogs. ARGV: the lease in us (even), the targets. It
// returns for each the token, how many wait, the first entry and the trouble; or only 0.
const claimScript = now + try + `
local reply = {}
for i = 2, #ARGV do
	local score = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[i]) or 'inf')
	local result = {0}
	if score <= now then
		local entry = redis.pcall('LINDEX', KEYS[i + 1], 0)
		if type(entry) == 'table' then
			redis.call('ZADD', KEYS[1], now + 60000001, ARGV[i])
		elseif not entry then
			redis.call('ZREM', KEYS[1], ARGV[i])
			try(0, 'HDEL', KEYS[2], ARGV[i])
		else
			result = {now + ARGV[1], redis.call('LLEN', KEYS[i + 1]), entry, try(false, 'HGET', KEYS[2], ARGV[i]) or ''}
			redis.call('ZADD', KEYS[1], result[1], ARGV[i])
		end
	end
	reply[#reply + 1] = result
end
return reply`

// completeScript removes one of the first 16 entries of a claimed backlog.
//
// KEYS: due, backlog, texts, trouble, bytes, sent. ARGV: target, token, id, trouble (may
// be empty), sent (may be empty), how long it is kept in ms. It returns how many are left,
// or -1 with another token. A full Redis does not keep what was sent.
const completeScript = removal + `
local target = ARGV[1]
if redis.call('ZSCORE', KEYS[1], target) ~= ARGV[2] then return -1 end
if ARGV[5] ~= '' then redis.pcall('SET', KEYS[6], ARGV[5], 'PX', ARGV[6]) end
local left = try(0, 'LLEN', KEYS[2])
for at = 0, 15 do
	local entry = try(false, 'LINDEX', KEYS[2], at)
	if entry and string.sub(entry, 2, 17) == ARGV[3] then
		left = left - 1
		if left > 0 then
			if at == 0 then redis.call('LPOP', KEYS[2]) else redis.call('LREM', KEYS[2], 1, entry) end
		end
		forget(entry, target, KEYS[3], KEYS[5])
		break
	end
end
if left == 0 then
	finish(target, KEYS[1], KEYS[2], KEYS[3], KEYS[4])
elseif ARGV[4] == '' then
	try(0, 'HDEL', KEYS[4], target)
else
	try(0, 'HSET', KEYS[4], target, ARGV[4])
end
return left`

// postponeScript ends a claim. KEYS: due, trouble. ARGV: target, token, delay in us,
// "keep" or "set", trouble (may be empty).
const postponeScript = now + try + `
if redis.call('ZSCORE', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
local delay = tonumber(ARGV[3])
redis.call('ZADD', KEYS[1], now + 1 + delay - delay % 2, ARGV[1])
if ARGV[4] == 'set' and ARGV[5] == '' then
	try(0, 'HDEL', KEYS[2], ARGV[1])
elseif ARGV[4] == 'set' then
	try(0, 'HSET', KEYS[2], ARGV[1], ARGV[5])
end
return 1`

// renewScript extends a claim. KEYS: due. ARGV: target, token, next token.
const renewScript = `
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if score == ARGV[2] then redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1]) end
if score == ARGV[2] or score == ARGV[3] then return 1 end
return 0`

// dropScript removes a backlog. KEYS: due, backlog, texts, trouble, bytes, sent. ARGV: target,
// token (empty to ignore claims). It returns the number of notifications, or -1 with
// another token.
const dropScript = removal + `
if ARGV[2] ~= '' and redis.call('ZSCORE', KEYS[1], ARGV[1]) ~= ARGV[2] then return -1 end
local entries = redis.pcall('LRANGE', KEYS[2], 0, -1)
local dropped = 0
for _, entry in ipairs(entries) do
	forget(entry, ARGV[1], KEYS[3], KEYS[5])
	dropped = dropped + 1
end
finish(ARGV[1], KEYS[1], KEYS[2], KEYS[3], KEYS[4])
redis.call('DEL', KEYS[6])
return dropped`

// retryScript makes unclaimed backlogs due. KEYS: due. ARGV: the targets. It returns how
// many were unclaimed.
const retryScript = now + `
local retried = 0
for _, target in ipairs(ARGV) do
	local score = tonumber(redis.call('ZSCORE', KEYS[1], target) or 0)
	if score % 2 == 1 then
		redis.call('ZADD', KEYS[1], now + 1, target)
		retried = retried + 1
	end
end
return retried`
