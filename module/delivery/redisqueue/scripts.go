package redisqueue

import (
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

// Scripts on the log of a user, KEYS[1], whose fields package stored describes. Each of them
// may be repeated after a lost reply: a nonce tells its own claim. Delays are in
// microseconds. Redis executes no script that works through a log.
var (
	appendTo = redisclient.NewScript(clock + appendScript)
	claim    = redisclient.NewScript(clock + claimScript)
	complete = redisclient.NewScript(completeScript)
	postpone = redisclient.NewScript(clock + postponeScript)
	cut      = redisclient.NewScript(cutScript)
)

// A script on a key of its own.
var lead = redisclient.NewScript(leadScript)

// Scripts on a shard of the index. KEYS: gates, then due and after of each gate. ARGV: the
// number of gates, their names, and the script's own arguments.
var (
	list   = redisclient.NewScript(clock + listScript)
	take   = redisclient.NewScript(clock + takeScript + refresh)
	settle = redisclient.NewScript(clock + settleScript + refresh)
)

const clock = `
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
`

// appendScript adds a notification, unless its id is known. ARGV: entry head, meta, text,
// nonce, lease, MaxUserBytes, 1 if urgent, how many pushers to claim at most; for each pusher its
// name, gate digest, delay (-1 to claim it) and generation. It returns whether the id is known, the notifications, the next
// number and the failing gates; for each pusher 0 (nothing to do), 1 (claimed by this host), 2
// (waits, or is claimed by another host) or 3 (waits, and is due earlier now), its number and the
// time until it is due or its claim lapses. New counts right after counts that no host may be
// sending are not added: the pushers get them with those (joins).
const appendScript = `
local key, names = KEYS[1], {'#log', '#ids'}
local entry, meta, text, nonce, lease, maxBytes, urgent, maxClaims = unpack(ARGV, 1, 8)
for i = 9, #ARGV, 4 do names[#names + 1] = ARGV[i] end
local got, claims = redis.call('HMGET', key, unpack(names)), maxClaims + 0
local head = got[1] or string.format('%d %d 0 0 0 0 ', now / 1000, now / 1000)
local cuts, after, count, bytes, states, counts, gates = string.match(head, ` + stored.LogHeadPattern + `)
after, count, bytes, states = after + 0, count + 0, bytes + 0, states + 0
local ids, id, isCounts = got[2] or '', ',' .. string.sub(entry, 2, 9), string.sub(entry, 1, 1) == 'c'
local isNew, joins, known, before = not string.find(ids, id, 1, true), isCounts and counts == '1', 0, states
if joins then
	for i = 3, #names do
		if got[i] then
			local _, by, n = string.match(got[i], ` + stored.PusherStatePattern + `)
			known = known + 1
			if by ~= nonce and string.sub(by, 1, 1) ~= '-' and (n + 0 == after - 1 or redis.call('HEXISTS', key, '+' .. names[i]) == 1) then
				joins = false
			end
		end
	end
	joins = joins and known == states
end
local start, set = after - (joins and 1 or 0), {}
local reply = {isNew and 0 or 1, 0, 0, gates}
for i = 3, #names do
	local kind, n, wait, digest, delay, generation = 0, 0, 0, unpack(ARGV, 4 * i - 2, 4 * i)
	if got[i] then
		local til, by, at, gate, rest = string.match(got[i], ` + stored.PusherStatePattern + `)
		kind, n, wait = by == nonce and 1 or 2, at + 0, til - now
		if string.sub(by, 1, 1) == '-' then
			local old = tonumber(string.match(rest, '^%d+'))
			local isSet = old > 0 and old < generation + 0
			if isSet then rest = '0 ' end
			local asked = (isSet or urgent == '1') and 0 or by == '-' and isNew and math.max(delay, 0)
			if asked and asked < wait then kind, til, wait = 3, string.format('%d', now + asked), asked end
			if kind == 3 or isSet or gate ~= digest then
				set[#set + 1], set[#set + 2] = names[i], string.format('%s %s %s %s %s', til, by, at, digest, rest)
			end
		end
	elseif isNew then
		kind, n, wait = 2, start, delay + 0
		if wait < 0 then
			claims, wait = claims - 1, 0
			if claims >= 0 then kind, wait = 1, lease + 0 end
		end
		set[#set + 1], set[#set + 2] = names[i], string.format('%d %s %d %s 0 ', now + wait, kind == 1 and nonce or '-', n, digest)
		states = states + 1
	end
	local at = #reply
	reply[at + 1], reply[at + 2], reply[at + 3] = kind, n, wait
end
if isNew then
	if not joins then
		local size = #text
		set[#set + 1], set[#set + 2] = '#' .. after, entry .. string.format('%d ', now / 1000) .. meta
		if size > 0 and bytes + size <= (states > before and 1048576 or math.min(maxBytes, 1048576)) then
			set[#set + 1], set[#set + 2] = '=' .. after, text
			bytes = bytes + size
		end
		after, count, counts = after + 1, count + 1, isCounts and 1 or 0
		set[#set + 1], set[#set + 2] = '#ids', string.sub(ids .. id, -576)
	end
	set[#set + 1], set[#set + 2] = '#log', string.format(` + stored.LogHeadFormat + `, cuts, after, count, bytes, states, counts, gates)
	if got[1] and before == 0 then redis.call('PERSIST', key) end
end
if #set > 0 then redis.call('HSET', key, unpack(set)) end
reply[2], reply[3] = count, after
return reply`

// claimScript claims due pushers at a gate. ARGV: nonce, lease, gate digest, limit, how many
// notifications to return (1 of a pusher with trouble); for each pusher its name and 1 if it is
// at the gate now. Of a user who fails at the gate it claims one pusher. It
// returns the next number, how many states it did not see, the time until the earliest pusher
// that is left at the gate (-1 for none) and the failing gates; for each claimed pusher its
// name, number, trouble, how many notifications it has before it, the numbers of the first
// ones, and pairs of entry and text.
const claimScript = `
local key, names = KEYS[1], {'#log'}
local nonce, lease, gate, limit, read = unpack(ARGV, 1, 5)
limit = limit + 0
for i = 6, #ARGV, 2 do names[#names + 1] = ARGV[i] end
local got = redis.call('HMGET', key, unpack(names))
if not got[1] then return {0, 0, -1, ''} end
local _, after, _, _, states, _, gates = string.match(got[1], ` + stored.LogHeadPattern + `)
local known, left, reply = 0, -1, {after + 0, 0, 0, gates}
if string.find(gates, ',' .. gate, 1, true) then limit = math.min(limit, 1) end
for i = 2, #names do
	if got[i] then
		local til, by, n, at, rest = string.match(got[i], ` + stored.PusherStatePattern + `)
		local wait = til - now
		known = known + 1
		if at == gate or ARGV[2 * i + 3] == '1' then
			if by == nonce or wait <= 0 and #reply < 4 + limit then
				local kept, from, waiting, numbers, fields = redis.call('HGET', key, '+' .. names[i]), n + 0, 0, {}, {}
				local first = rest == '0 ' and read + 0 or 1
				if kept then
					local place = string.match(kept, '^%d+') + 0
					if place > from then
						for below in string.gmatch(kept, ' (%d+)') do
							if place - below >= from then
								waiting = waiting + 1
								if waiting <= first then numbers[waiting] = place - below end
							end
						end
						from = place
					end
				end
				for k = from, math.min(from + first - #numbers, after) - 1 do numbers[#numbers + 1] = k end
				for k = 1, #numbers do
					fields[2 * k - 1], fields[2 * k] = '#' .. numbers[k], '=' .. numbers[k]
				end
				redis.call('HSET', key, names[i], string.format('%d %s %s %s %s', now + lease, nonce, n, gate, rest))
				reply[#reply + 1] = {
					names[i], n + 0, rest, waiting + after - from, numbers, #fields > 0 and redis.call('HMGET', key, unpack(fields)) or {}
				}
			elseif left < 0 or wait < left then
				left = math.max(wait, 0)
			end
		end
	end
end
reply[2], reply[3] = states - known, left
return reply`

// completeScript moves a claimed pusher; if no other one has anything to send, it removes up to
// 100 notifications that the pusher has passed. ARGV: pusher, nonce, its number, the next one,
// trouble, the digest of the gate that has answered or "", the digest of the gate where the
// user is listed, and the user's other pushers. It returns -1 if the claim is lost, otherwise
// how many numbers are left; and 1 if nothing is left at the gate.
const completeScript = `
local key = KEYS[1]
local pusher, nonce, number, moveTo, trouble, answered, listedAt = unpack(ARGV, 1, 7)
local got = redis.call('HMGET', key, '#log', pusher, '#ids')
if not (got[1] and got[2]) then return {-1, 0} end
local cuts, after, count, bytes, states, counts, gates = string.match(got[1], ` + stored.LogHeadPattern + `)
local til, by, n, gate = string.match(got[2], ` + stored.PusherStatePattern + `)
local to, empty = math.min(moveTo, after), 0
if by ~= nonce or n ~= number and n + 0 ~= to then return {-1, 0} end
if answered ~= '' then
	local from, last = string.find(gates, ',' .. answered, 1, true)
	if from then gates = string.sub(gates, 1, from - 1) .. string.sub(gates, last + 1) end
end
if to < after + 0 then
	redis.call('HSET', key, pusher, string.format('%s %s %d %s %s', til, by, to, gate, trouble))
	if states == '1' then
		local kept, from, passed = to - n > 1 and redis.call('HGET', key, '+' .. pusher), n + 0, {}
		if kept then
			local place = string.match(kept, '^%d+') + 0
			for below in string.gmatch(kept, ' (%d+)') do
				local k = place - below
				if k >= n + 0 and k < to and #passed < 100 then passed[#passed + 1] = k end
			end
			from = math.max(from, place)
		end
		for k = from, math.min(to, from + 100 - #passed) - 1 do passed[#passed + 1] = k end
		for i = 1, #passed do
			bytes = bytes - redis.call('HSTRLEN', key, '=' .. passed[i])
			count = count - redis.call('HDEL', key, '#' .. passed[i])
			redis.call('HDEL', key, '=' .. passed[i])
		end
	end
elseif states == '1' then
	local head = string.format(` + stored.LogHeadFormat + `, cuts, after, 0, 0, 0, 0, gates)
	redis.call('UNLINK', key)
	redis.call('HSET', key, '#log', head, '#ids', got[3] or '')
	redis.call('EXPIRE', key, '900')
	return {after - to, 1}
else
	redis.call('HDEL', key, pusher, '+' .. pusher)
	states = states - 1
	if #ARGV > 7 then
		local known, other = 0, redis.call('HMGET', key, unpack(ARGV, 8))
		empty = 1
		for i = 1, #ARGV - 7 do
			if other[i] then
				local _, _, _, at = string.match(other[i], ` + stored.PusherStatePattern + `)
				known = known + 1
				if at == listedAt then empty = 0 end
			end
		end
		if known < states then empty = 0 end
	end
end
redis.call('HSET', key, '#log', string.format(` + stored.LogHeadFormat + `, cuts, after, count, bytes, states, counts, gates))
return {after - to, empty}`

// postponeScript ends or renews a claim. ARGV: pusher, nonce, its number, delay, the gate's
// digest ("" to renew), trouble, the digest of a gate to mark as failing or "". It returns 1,
// or 0 if the claim is lost. A repetition changes nothing: the pusher may be due earlier now.
const postponeScript = `
local key = KEYS[1]
local pusher, nonce, number, delay, digest, trouble, marked = unpack(ARGV)
local got = redis.call('HMGET', key, '#log', pusher)
if not (got[1] and got[2]) then return {0} end
local til, by, n, gate, rest = string.match(got[2], ` + stored.PusherStatePattern + `)
if n == number and by == '-' .. nonce and digest ~= '' then return {1} end
if n ~= number or by ~= nonce then return {0} end
if digest ~= '' then by, gate, rest = '-' .. nonce, digest, trouble end
redis.call('HSET', key, pusher, string.format('%d %s %s %s %s', now + delay, by, n, gate, rest))
local gates = string.match(got[1], '^.* (.*)$')
if marked ~= '' and not string.find(gates, ',' .. marked, 1, true) then
	redis.call('HSET', key, '#log', string.sub(got[1], 1, -1 - #gates) .. string.sub(gates .. ',' .. marked, -72))
end
return {1}`

// cutScript cuts pushers, and removes notifications that no pusher has. ARGV: the head's cuts that
// the caller has read, and the new ones; how many pushers, and for each its name and what it
// keeps, "" for all; the numbers to remove. It returns 1, or 0 if the log was cut meanwhile.
const cutScript = `
local key = KEYS[1]
local read, new, pushers = unpack(ARGV, 1, 3)
local head = redis.call('HGET', key, '#log')
if not head then return 0 end
local cuts, after, count, bytes, states, counts, gates = string.match(head, ` + stored.LogHeadPattern + `)
if cuts ~= read and cuts ~= new then return 0 end
for i = 4, 2 + 2 * pushers, 2 do
	if ARGV[i + 1] == '' then
		redis.call('HDEL', key, '+' .. ARGV[i])
	elseif redis.call('HEXISTS', key, ARGV[i]) == 1 then
		redis.call('HSET', key, '+' .. ARGV[i], ARGV[i + 1])
	end
end
for i = 4 + 2 * pushers, #ARGV do
	bytes = bytes - redis.call('HSTRLEN', key, '=' .. ARGV[i])
	count = count - redis.call('HDEL', key, '#' .. ARGV[i])
	redis.call('HDEL', key, '=' .. ARGV[i])
end
redis.call('HSET', key, '#log', string.format(` + stored.LogHeadFormat + `, new, after, count, bytes, states, counts, gates))
return 1`

// listScript lists users. It only lowers a score, and always changes it. ARGV: for each user
// the gate's number, the user, a delay, and "1" if the user fails at the gate. It returns the
// scores. A user who is in both sets of a gate is found twice, which does no harm.
const listScript = `
local scores, earliest = {}, {}
for i = 2 + ARGV[1], #ARGV, 4 do
	local g, user, delay, fails = unpack(ARGV, i, i + 3)
	local at, set = now + delay, KEYS[2 * g + fails]
	if redis.call('ZADD', set, 'LT', 'CH', at, user) == 0 then
		at = redis.call('ZINCRBY', set, -1, user) + 0
	end
	if fails == '1' then redis.call('ZREM', KEYS[2 * g], user) end
	earliest[g] = math.min(earliest[g] or at, at)
	scores[#scores + 1] = at
end
for g, at in pairs(earliest) do redis.call('ZADD', KEYS[1], 'LT', at, ARGV[g + 1]) end
return scores`

// takeScript returns due users and raises their scores. ARGV: for each gate how many users to
// return, and how many of them may fail there; the lease is the last one. It returns the time
// and, for each gate, the failing users with their scores and the others.
const takeScript = `
local gates, reply, lease = ARGV[1] + 0, {string.format('%d', now)}, ARGV[#ARGV] + 0
for g = 1, gates do
	local most, failing = ARGV[gates + 2 * g] + 0, ARGV[gates + 2 * g + 1] + 0
	for to = 1, 0, -1 do
		local limit, found = to == 1 and math.min(failing, most) or most, {}
		if limit > 0 then found = redis.call('ZRANGEBYSCORE', KEYS[2 * g + to], '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit) end
		for i = 1, #found, 2 do redis.call('ZADD', KEYS[2 * g + to], now + lease, found[i]) end
		most = most - #found / 2
		reply[#reply + 1] = found
	end
end
`

// settleScript raises or removes users whose scores are as the caller knows them. ARGV: for
// each user the gate's number, the user, the score, the delay (-1 to remove) and "1" if the
// user fails at the gate. It returns the new scores, 0 for none.
const settleScript = `
local gates, reply = ARGV[1] + 0, {}
for i = 2 + gates, #ARGV, 5 do
	local g, user, known, wait, to = unpack(ARGV, i, i + 4)
	local at, from = 0, 0
	wait, to = wait + 0, to + 0
	local score = redis.call('ZSCORE', KEYS[2 * g], user)
	if not score then score, from = redis.call('ZSCORE', KEYS[2 * g + 1], user), 1 end
	if score and score + 0 == known + 0 then
		if wait < 0 or to ~= from then redis.call('ZREM', KEYS[2 * g + from], user) end
		if wait >= 0 then
			at = now + wait + i -- keeps the order of the users
			if at == score + 0 then at = at - 1 end
			redis.call('ZADD', KEYS[2 * g + to], at, user)
		end
	end
	reply[#reply + 1] = at
end
`

// refresh sets the times of the gates.
const refresh = `
for g = 1, gates do
	local due, failing = redis.call('ZRANGE', KEYS[2 * g], 0, 0, 'WITHSCORES'), redis.call('ZRANGE', KEYS[2 * g + 1], 0, 0, 'WITHSCORES')
	if due[2] or failing[2] then
		redis.call('ZADD', KEYS[1], math.min(due[2] or math.huge, failing[2] or math.huge), ARGV[g + 1])
	else
		redis.call('ZREM', KEYS[1], ARGV[g + 1])
	end
end
return reply`

// leadScript returns 1 if the caller is the one host, which it stays for a time. ARGV: the
// caller's nonce, the time in milliseconds.
const leadScript = `
local by = redis.call('GET', KEYS[1])
if by and by ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1`
