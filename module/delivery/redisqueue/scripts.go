package redisqueue

import "github.com/pushfx/pushfx/module/redisclient"

// The keys of a script are declared, and in one slot. Scripts are idempotent, because the
// client repeats them after a lost answer. Redis hashes every byte that a script
// handles. So a script gets each new text only once, and reads no stored text.
//
// The score of a backlog in the sorted set of its gate is a time in microseconds. An even
// score is the token of a claim, and the time when it lapses. An odd score is the due
// time of an unclaimed backlog. The score of a gate is at or before the earliest score of
// its backlogs: a completion need not change it, and the next look corrects it.
//
// If the key of gates, backlogs, first notifications or texts has another type, the script
// fails, the host puts the key aside, and repeats the script; see [Queue.run]. Until it
// fails, the script has changed nothing, or only what a repetition replaces.

var (
	enqueue  = redisclient.NewScript(enqueueScript)
	due      = redisclient.NewScript(dueScript)
	claim    = redisclient.NewScript(claimScript)
	complete = redisclient.NewScript(completeScript)
	postpone = redisclient.NewScript(postponeScript)
	renew    = redisclient.NewScript(renewScript)
	drop     = redisclient.NewScript(dropScript)
	retry    = redisclient.NewScript(retryScript)
	list     = redisclient.NewScript(listScript)
	putAside = redisclient.NewScript(putAsideScript)

	take      = redisclient.NewScript(takeScript)
	hasten    = redisclient.NewScript(hastenScript)
	dropTexts = redisclient.NewScript(dropTextsScript)
	dropShard = redisclient.NewScript(dropShardScript)
)

// now is the time of Redis in microseconds, made even.
const now = `
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
now = now - now % 2
`

// calls defines try, a redis.call that returns a default if the key has another type. So
// such a key harms its pusher only, not its shard.
const calls = `
local function try(default, ...)
	local reply = redis.pcall(...)
	if type(reply) ~= 'table' or not reply.err then return reply end
	if string.find(reply.err, 'WRONGTYPE', 1, true) then return default end
	return redis.call(...)
end
`

// records has functions on the entries of backlogs; see stored.FirstEntry and
// stored.BacklogEntry.
const records = calls + `
local function split(record)
	local n = tonumber(string.sub(record, 1, 3)) or 0
	return string.sub(record, 4, n + 3), string.sub(record, n + 4)
end
local function join(gate, entry) return string.format('%03d', #gate) .. gate .. entry end
local function isFanOut(target) return string.sub(target, 1, 7) == 'fanout-' end
-- count adds to a count of bytes, and returns it. A count that is no number begins again.
local function count(bytes, field, by)
	local n = redis.pcall('HINCRBY', bytes, field, by)
	if type(n) == 'table' then
		if string.find(n.err, 'integer', 1, true) or string.find(n.err, 'overflow', 1, true) then redis.call('HDEL', bytes, field) end
		n = try(0, 'HINCRBY', bytes, field, by)
	end
	if n <= 0 then try(0, 'HDEL', bytes, field) end
	return n
end
local function uncount(entry, target, bytes)
	local counted = tonumber(string.sub(entry, 34, 39)) or 0
	if counted == 0 then return end
	count(bytes, string.sub(entry, 26, 33), -counted)
	if isFanOut(target) then
		count(bytes, 'fanout--', -counted)
		count(bytes, 'fanout-n', -1)
	end
end
`

// enqueueScript adds entries to backlogs.
//
// KEYS: seen, gates, first, texts, trouble, bytes; due of each gate; of each addition the
// list. ARGV: 1 a nonce, 2 the window in ms, 3 the lease in us (even), 4 the longest
// backlog, the bytes of a user, how many seconds an entry is kept, the bytes of a room's
// fan-out, and of all, 5 the expanded fan-out, its token, from and to, or nothing, 6 how
// many gates, 7 how many additions; the gates; the targets; the fan-out of the room; of each
// addition the index of its gate, of its text or 0, the first 33 bytes of the entry, the
// meta, the delay in us or "claim", the generation, "u" if it is urgent; the texts. The
// reply begins with a state: 1 added, 0 again, -1 behind, -2 full, -3 fenced; or -4, and
// more gates whose keys it needs.
const enqueueScript = now + records + `
local gates, n, fields = tonumber(ARGV[6]), tonumber(ARGV[7]), 7
local targets = 7 + gates
local additions = targets + n + 1
local texts = additions + n * fields
local function dueOf(gate)
	for g = 1, gates do
		if ARGV[7 + g] == gate then return KEYS[6 + g] end
	end
end
local known = redis.call('HMGET', KEYS[3], unpack(ARGV, targets + 1, targets + n + 1))
local missing, begun = {-4}, false
for i = 1, n do
	if known[i] then
		local gate = split(known[i])
		if not dueOf(gate) then missing[#missing + 1] = gate end
		begun = true
	end
end
if #missing > 1 then return missing end
local longest, share, keepFor, mostOfRoom, most
if begun or isFanOut(ARGV[targets + 1]) then
	longest, share, keepFor, mostOfRoom, most = string.match(ARGV[4], '(%d+) (%d+) (%S+) (%d+) (%d+)')
end

local function again(nonce, token)
	local reply = {0, 0, 0}
	for i = 1, n do
		local isOwn = nonce == ARGV[1] and known[i] and redis.call('ZSCORE', dueOf(split(known[i])), ARGV[targets + i]) == token
		reply[3 + i] = isOwn and tonumber(token) or 0
	end
	return reply
end
-- isFull reports whether a room's fan-out has no place for the event.
local function isFull(ahead)
	local bytes, room = #ARGV[texts + 1], string.sub(ARGV[additions + 3], 26, 33)
	local ofRoom = count(KEYS[6], room, 0) + bytes
	local all = count(KEYS[6], 'fanout--', 0) + bytes
	return ofRoom > tonumber(mostOfRoom) or all > tonumber(most) and (ahead or all > 2 * most)
end
local expanded, claimed, from, to
if ARGV[5] ~= '' then
	expanded, claimed, from, to = string.match(ARGV[5], '(%S+) (%d+) (%d+) (%d+)')
	if redis.call('ZSCORE', dueOf('fanout-'), expanded) ~= claimed then return {-3} end
	local position, nonce, token = string.match(redis.call('HGET', KEYS[5], expanded) or '', '^(%d+) (%S+) (%d+)')
	position = position or '0'
	if position == to and position ~= from then return again(nonce, token) end
	if position ~= from then return {-3} end
else
	local seen = redis.call('GET', KEYS[1])
	local nonce, token = string.match(seen or '', '(%S+) (%d+)')
	if nonce then return again(nonce, token) end
	if isFanOut(ARGV[targets + 1]) then
		if isFull(known[n + 1]) then return {-2} end
	elseif known[n + 1] then
		return {-1}
	end
end
if longest then
	-- Entries of lists and counts of bytes cannot be added twice: keys of another type fail before.
	redis.call('ZCARD', KEYS[2])
	redis.call('HLEN', KEYS[4])
	for g = 1, gates do redis.call('ZCARD', KEYS[6 + g]) end
end

local reply, token = {1, 0, 0}, string.format('%.0f', now + ARGV[3])
local set, kept, long, listed, gate, earliest
local function pair(all, a, b)
	if not all then return {a, b} end
	local size = #all
	all[size + 1], all[size + 2] = a, b
	return all
end
local function list()
	if listed then
		redis.call('ZADD', dueOf(gate), unpack(listed))
		redis.call('ZADD', KEYS[2], 'LT', earliest, gate)
	end
	listed = nil
end
local function put(to, target, score)
	if to ~= gate then list() end
	if not listed or earliest ~= score and tonumber(score) < tonumber(earliest) then earliest = score end
	gate, listed = to, pair(listed, score, target)
end
local function keep(i, k)
	if ARGV[k + 2] ~= '0' then kept = pair(kept, ARGV[targets + i] .. string.sub(ARGV[k + 3], 2, 17), ARGV[texts + ARGV[k + 2]]) end
end
-- entryOf returns an entry, and keeps its text. The text of an entry that begins a backlog
-- counts for no user.
local function entryOf(i, k, begins)
	local counted, isKept = '000000', true
	if isFanOut(ARGV[targets + i]) or not begins and ARGV[k + 2] ~= '0' then
		local bytes, user = #(ARGV[texts + ARGV[k + 2]] or ''), string.sub(ARGV[k + 3], 26, 33)
		if isFanOut(ARGV[targets + i]) then
			count(KEYS[6], user, bytes)
			count(KEYS[6], 'fanout--', bytes)
			count(KEYS[6], 'fanout-n', 1)
		elseif count(KEYS[6], user, bytes) > tonumber(share) then
			count(KEYS[6], user, -bytes)
			bytes, isKept = 0, false
		end
		counted = string.format('%06d', bytes)
	end
	if isKept then keep(i, k) end
	return ARGV[k + 3] .. counted .. time[1] .. ARGV[k + 4]
end
-- begin adds the first entry of a backlog, and returns the token of a claim.
local function begin(i, k)
	local target, gate, isClaimed = ARGV[targets + i], ARGV[7 + ARGV[k + 1]], ARGV[k + 5] == 'claim'
	set = pair(set, target, join(gate, entryOf(i, k, true)))
	put(gate, target, isClaimed and token or now + 1 + ARGV[k + 5])
	return isClaimed and tonumber(token) or 0
end
-- wake changes the due time and the gate of an unclaimed backlog, if necessary. With
-- isNewEntry, it also stores the first entry.
local function wake(i, k, gate, score, entry, isNewEntry)
	local target, to = ARGV[targets + i], ARGV[7 + ARGV[k + 1]]
	local isClaimed = score and score % 2 == 0
	local at = score
	if not score then
		at = now + 1
	elseif not isClaimed and score > now then
		local trouble = try(false, 'HGET', KEYS[5], target)
		local isNew = trouble and tonumber(string.match(trouble, '^%d+') or 0) < tonumber(ARGV[k + 6])
		if isNew then try(0, 'HDEL', KEYS[5], target) end
		if isNew or ARGV[k + 7] == 'u' then at = now + 1 end
	end
	if isClaimed then to = gate end
	if to ~= gate then redis.call('ZREM', dueOf(gate), target) end
	if to ~= gate or isNewEntry then set = pair(set, target, join(to, entry)) end
	if to ~= gate or at ~= score then put(to, target, at) end
end
-- trim chooses the least important entries: counts, then what has low priority, then the
-- oldest of the room with most. It drops those that are old enough, except the first two,
-- which may be in flight: the first one is not in the list.
local function trim(target, more)
	local entries = redis.call('LRANGE', more, 0, -1)
	local left, rooms, dropped = #entries + 1 - longest, {}, 0
	local before = now / 1000000 - keepFor
	if #entries + 1 > 10 * longest then before = math.huge end
	local function choose(i)
		if tonumber(string.sub(entries[i], 40, 49)) <= before then
			try(0, 'HDEL', KEYS[4], target .. string.sub(entries[i], 2, 17))
			uncount(entries[i], target, KEYS[6])
			redis.call('LSET', more, i - 1, '')
			dropped = dropped + 1
		end
		entries[i], left = false, left - 1
	end
	for _, priority in ipairs({'c', 'l'}) do
		for i = 2, #entries do
			if left > 0 and entries[i] and string.sub(entries[i], 1, 1) == priority then choose(i) end
		end
	end
	for i = 2, #entries do
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
	if dropped > 0 then redis.call('LREM', more, 0, '') end
	return dropped
end
-- append adds an entry to a backlog, and returns the token of a claim.
local function append(i, k)
	local target, more, id = ARGV[targets + i], KEYS[6 + gates + i], string.sub(ARGV[k + 3], 2, 17)
	local gate, entry = split(known[i])
	local score = tonumber(redis.call('ZSCORE', dueOf(gate), target) or nil)
	local length = redis.pcall('LLEN', more)
	if type(length) == 'table' then -- the key has another type
		reply[2] = reply[2] + 1
		return 0
	end
	local last = length > 0 and redis.call('LINDEX', more, -1) or entry
	if id == string.sub(entry, 2, 17) or id == string.sub(last, 2, 17) then -- Redis refused the rest of an earlier try
		keep(i, k)
		wake(i, k, gate, score, entry)
		return 0
	end
	if string.sub(last, 1, 1) == 'c' and (length > 0 or not score or score % 2 == 1) then
		if string.sub(ARGV[k + 3], 1, 1) == 'c' then return 0 end
		if length > 0 then
			redis.call('RPOP', more)
			length = length - 1
		elseif try(0, 'HEXISTS', KEYS[5], target) == 0 then
			redis.call('ZREM', dueOf(gate), target)
			return begin(i, k)
		else
			wake(i, k, gate, score, entryOf(i, k, true), true)
			return 0
		end
	end
	redis.call('RPUSH', more, entryOf(i, k))
	wake(i, k, gate, score, entry)
	if length + 2 > longest * 1.2 and not isFanOut(target) then long = pair(long, target, more) end
	return 0
end

for i = 1, n do
	local k = additions + (i - 1) * fields
	reply[3 + i] = known[i] and append(i, k) or begin(i, k)
end
list()
if kept then redis.call('HSET', KEYS[4], unpack(kept)) end
if set then redis.call('HSET', KEYS[3], unpack(set)) end
for i = 1, long and #long or 0, 2 do reply[2] = reply[2] + trim(long[i], long[i + 1]) end -- after HSET, since trim deletes texts
-- SET and HSET come last: if Redis refuses an earlier command, the next try adds the rest.
if not expanded then
	redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. token, 'PX', ARGV[2])
else
	redis.call('HSET', KEYS[5], expanded, to .. ' ' .. ARGV[1] .. ' ' .. token)
	for g = 1, gates do
		if ARGV[7 + g] ~= 'fanout-' then reply[3] = reply[3] + redis.call('ZCOUNT', KEYS[6 + g], '-inf', now + 1) end
	end
end
return reply`

// dueScript finds gates that may have due backlogs. KEYS: gates. ARGV: how many to pass
// over, a limit. It returns the time, and the name and score of each.
const dueScript = now + `
return {string.format('%.0f', now), redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'WITHSCORES', 'LIMIT', ARGV[1], ARGV[2])}`

// claimScript claims due backlogs of gates, and corrects the scores of the gates.
//
// KEYS: gates, first, trouble, due of each gate. ARGV: the lease in us (even), of each gate
// the name and how many to claim. It returns the token, and for each gate the earliest due
// time, the targets, their records and their troubles.
const claimScript = now + `
local reply, token, due = {}, now + ARGV[1], {}
for g = 1, #KEYS - 3 do
	due[g] = redis.call('ZRANGEBYSCORE', KEYS[3 + g], '-inf', now, 'WITHSCORES', 'LIMIT', 0, ARGV[2 * g + 1])
end
for g, found in ipairs(due) do
	local gate, key, members = ARGV[2 * g], KEYS[3 + g], {}
	local result = {'', {}, {}, {}}
	for i = 1, #found, 2 do members[#members + 1] = found[i] end
	if #members > 0 then
		local records = redis.call('HMGET', KEYS[2], unpack(members))
		local troubles = redis.call('HMGET', KEYS[3], unpack(members))
		result[1] = found[2]
		local scores, gone = {}, {}
		for i, target in ipairs(members) do
			local record = records[i]
			if record and string.sub(record, 4, 3 + (tonumber(string.sub(record, 1, 3)) or 0)) == gate then
				scores[#scores + 1] = token
				scores[#scores + 1] = target
				table.insert(result[2], target)
				table.insert(result[3], record)
				table.insert(result[4], troubles[i] or '')
			else
				gone[#gone + 1] = target
			end
		end
		if #scores > 0 then redis.call('ZADD', key, unpack(scores)) end
		if #gone > 0 then redis.call('ZREM', key, unpack(gone)) end
	end
	local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
	if first[2] then redis.call('ZADD', KEYS[1], first[2], gate) else redis.call('ZREM', KEYS[1], gate) end
	reply[g] = result
end
return {token, reply}`

// completeScript removes a notification from each of several claimed backlogs. It must be
// among the first 16 of its backlog.
//
// KEYS: first, texts, bytes, trouble; of each notification the list, and what was sent; due
// of each gate. ARGV: 1 how many notifications, 2 how long what was sent is kept in ms; the
// targets, in the order of their gates; of each the index of due, the token, the id, the
// trouble (may be empty), what was sent (may be empty). It returns for each how many are
// left, or -1 with another token. A full Redis does not keep what was sent.
const completeScript = records + `
local n, fields = tonumber(ARGV[1]), 5
local known = redis.call('HMGET', KEYS[1], unpack(ARGV, 3, 2 + n))
local isAlone = redis.call('EXISTS', unpack(KEYS, 4, 4 + n)) == 0 -- no lists, no troubles
local texts, reply = {}, {}
-- remove removes an entry, and returns how many are left. Next is the new first one.
local function remove(target, list, record, id)
	local gate, entry = split(record)
	local left = isAlone and 0 or try(0, 'LLEN', list)
	if string.sub(entry, 2, 17) == id then
		local following = left > 0 and redis.call('LPOP', list)
		if following then redis.call('HSET', KEYS[1], target, join(gate, following)) end
	else
		local found
		for _, other in ipairs(left > 0 and redis.call('LRANGE', list, 0, 14) or {}) do
			if not found and string.sub(other, 2, 17) == id then found = other end
		end
		if not found then return left + 1 end
		redis.call('LREM', list, 1, found)
		entry = found
	end
	texts[#texts + 1] = target .. id
	uncount(entry, target, KEYS[3])
	return left
end
local i = 1
while i <= n do
	local from, k = i, 2 + n + (i - 1) * fields
	local g = ARGV[k + 1]
	local due, over = KEYS[tonumber(g)], {}
	while ARGV[2 + n + i * fields + 1] == g do i = i + 1 end
	local tokens = redis.call('ZMSCORE', due, unpack(ARGV, 2 + from, 2 + i))
	for j = from, i do
		local target, left = ARGV[2 + j], -1
		if tokens[j - from + 1] == ARGV[k + 2] then
			left = known[j] and remove(target, KEYS[4 + j], known[j], ARGV[k + 3]) or 0
			if ARGV[k + 5] ~= '' then redis.pcall('SET', KEYS[4 + n + j], ARGV[k + 5], 'PX', ARGV[2]) end
			if left == 0 then
				over[#over + 1] = target
			elseif ARGV[k + 4] ~= '' then
				try(0, 'HSET', KEYS[4], target, ARGV[k + 4])
			elseif not isAlone then
				try(0, 'HDEL', KEYS[4], target)
			end
		end
		reply[j], k = left, k + fields
	end
	if #over > 0 then
		redis.call('HDEL', KEYS[1], unpack(over))
		if not isAlone then try(0, 'HDEL', KEYS[4], unpack(over)) end
		redis.call('ZREM', due, unpack(over))
	end
	i = i + 1
end
if #texts > 0 then try(0, 'HDEL', KEYS[2], unpack(texts)) end
return reply`

// postponeScript ends a claim. KEYS: gates, first, trouble, due of the gate, due of the next
// gate. ARGV: target, token, delay in us, "keep" or "set", trouble (may be empty), the next
// gate.
const postponeScript = now + records + `
if redis.call('ZSCORE', KEYS[4], ARGV[1]) ~= ARGV[2] then return 0 end
local score = now + 1 + ARGV[3] - ARGV[3] % 2
if KEYS[4] ~= KEYS[5] then
	local record = redis.call('HGET', KEYS[2], ARGV[1])
	if record then
		local _, entry = split(record)
		redis.call('HSET', KEYS[2], ARGV[1], join(ARGV[6], entry))
	end
	redis.call('ZADD', KEYS[5], score, ARGV[1])
	redis.call('ZREM', KEYS[4], ARGV[1])
else
	redis.call('ZADD', KEYS[4], score, ARGV[1])
end
redis.call('ZADD', KEYS[1], 'LT', score, ARGV[6])
if ARGV[4] == 'set' and ARGV[5] == '' then
	try(0, 'HDEL', KEYS[3], ARGV[1])
elseif ARGV[4] == 'set' then
	try(0, 'HSET', KEYS[3], ARGV[1], ARGV[5])
end
return 1`

// renewScript extends a claim. KEYS: due of the gate. ARGV: target, token, next token.
const renewScript = `
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if score == ARGV[2] then redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1]) end
if score == ARGV[2] or score == ARGV[3] then return 1 end
return 0`

// dropScript removes a backlog. KEYS: first, texts, trouble, bytes, due of the gate, the list,
// sent, gates. ARGV: target, token (empty to ignore claims), gate. It returns the number of
// notifications, or -1 with another token.
const dropScript = records + `
local target = ARGV[1]
if ARGV[2] ~= '' and redis.call('ZSCORE', KEYS[5], target) ~= ARGV[2] then return -1 end
local record = redis.call('HGET', KEYS[1], target)
local entries = try({}, 'LRANGE', KEYS[6], 0, -1)
if record then
	local _, entry = split(record)
	entries[#entries + 1] = entry
end
for _, entry in ipairs(entries) do
	try(0, 'HDEL', KEYS[2], target .. string.sub(entry, 2, 17))
	uncount(entry, target, KEYS[4])
end
redis.call('ZREM', KEYS[5], target)
if redis.call('EXISTS', KEYS[5]) == 0 then redis.call('ZREM', KEYS[8], ARGV[3]) end
redis.call('HDEL', KEYS[1], target)
try(0, 'HDEL', KEYS[3], target)
redis.call('DEL', KEYS[6], KEYS[7])
return #entries`

// retryScript makes unclaimed backlogs of a gate due. KEYS: gates, due of the gate. ARGV: the
// gate, the targets. It returns how many were unclaimed.
const retryScript = now + `
local retried = 0
for i = 2, #ARGV do
	local score = tonumber(redis.call('ZSCORE', KEYS[2], ARGV[i]) or 0)
	if score % 2 == 1 then
		redis.call('ZADD', KEYS[2], now + 1, ARGV[i])
		retried = retried + 1
	end
end
if retried > 0 then redis.call('ZADD', KEYS[1], 'LT', now + 1, ARGV[1]) end
return retried`

// listScript makes a backlog due if it is not listed, or has no first notification. KEYS:
// gates, first, due of the gate, the list. ARGV: the target, the gate.
const listScript = records + `
local record = redis.call('HGET', KEYS[2], ARGV[1])
if record then
	if split(record) ~= ARGV[2] then return 0 end
else
	local entry = redis.call('LPOP', KEYS[4])
	if not entry then return 0 end
	redis.call('HSET', KEYS[2], ARGV[1], join(ARGV[2], entry))
end
redis.call('ZADD', KEYS[3], 'NX', 1, ARGV[1])
redis.call('ZADD', KEYS[1], 'LT', redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2], ARGV[2])
return 1`

// putAsideScript renames keys of another type. KEYS: of each a key, and its next name. ARGV:
// of each the type that it should have. It returns how many it has renamed.
const putAsideScript = `
local renamed = 0
for i, want in ipairs(ARGV) do
	local is = redis.call('TYPE', KEYS[2 * i - 1]).ok
	if is ~= want and is ~= 'none' then
		redis.call('RENAME', KEYS[2 * i - 1], KEYS[2 * i])
		renamed = renamed + 1
	end
end
return renamed`

// takeScript claims a backlog, due or not. KEYS: due of the gate. ARGV: the target, the
// lease in us (even). It returns the token, or -1 if the backlog is claimed or gone.
const takeScript = now + `
local score = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or now)
if score % 2 == 0 and score >= now then return -1 end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
return now + ARGV[2]`

// hastenScript makes backlogs due that would be due too late. KEYS: gates, due of the gate.
// ARGV: the gate, the longest wait in us, how many at most. It returns how many it has
// changed.
const hastenScript = now + `
local late = redis.call('ZRANGE', KEYS[2], string.format('(%.0f', now + ARGV[2]), '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[3])
for _, target in ipairs(late) do redis.call('ZADD', KEYS[2], now + 1, target) end
local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if first[2] then redis.call('ZADD', KEYS[1], 'LT', first[2], ARGV[1]) end
return #late`

// dropTextsScript removes texts whose notification is in no backlog. KEYS: first, texts, of
// each text the list of its backlog. ARGV: of each the target and the id. It returns how
// many it has removed.
const dropTextsScript = records + `
local waits, known, gone = {}, {}, {}
for i = 3, #KEYS do
	local target = ARGV[2 * i - 5]
	if not known[target] then
		known[target] = true
		local entries = redis.call('LRANGE', KEYS[i], 0, -1)
		local _, first = split(redis.call('HGET', KEYS[1], target) or '')
		entries[#entries + 1] = first
		for _, entry in ipairs(entries) do waits[target .. string.sub(entry, 2, 17)] = true end
	end
	local field = target .. ARGV[2 * i - 4]
	if not waits[field] then gone[#gone + 1] = field end
end
if #gone == 0 then return 0 end
return redis.call('HDEL', KEYS[2], unpack(gone))`

// dropShardScript removes what a shard without backlogs still has, except texts. KEYS:
// first, then the keys to remove.
const dropShardScript = `
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
for i = 2, #KEYS do redis.call('DEL', KEYS[i]) end
return #KEYS - 1`
