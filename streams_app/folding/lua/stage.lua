#!lua
-- Puts sessions that begin and end within a range into the outbox before fold.lua folds the range: together they would hold Redis
-- for too long. They lie beyond the fence: nobody sees them before it has moved, and a claim drops them.
--
-- KEYS[1] meta      hash
-- KEYS[2] first     zset
-- KEYS[3] outbox    zset
-- ARGV[1] token     text
-- ARGV[2] fence     offset expected
-- ARGV[3] to        offset of the fence after the range
-- ARGV[4] attempt   text: of all portions of one attempt to fold, and of its fold.lua
-- ARGV[5] begin     "1" = its first portion: what another attempt has staged is dropped
-- ARGV[6] sessions  msgpack array, three values for each: group, first offset, packed record
--
-- Returns {"ok", msgpack array of the positions of those whose group is open: they are not staged}
--         {"already"} when this very range was folded by this owner and the reply was lost
--         {"refused", "no-state" | "token" | "fence" | "staged"}
-- Cost    about 3 us a session. Repeating it changes nothing.
local meta, first, outbox = KEYS[1], KEYS[2], KEYS[3]
local token, fence, to, attempt, begin, sessions = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1', cmsgpack.unpack(ARGV[6])
local PAGE = 4000 -- values in one call

local state = redis.call('HMGET', meta, 'token', 'fence', 'attempt')
if not state[2] then return {'refused', 'no-state'} end
if state[1] ~= token then return {'refused', 'token'} end
if state[2] == to then return {'already'} end
if state[2] ~= fence then return {'refused', 'fence'} end
if begin then
  redis.call('ZREMRANGEBYSCORE', outbox, '(' .. fence, '+inf')
  redis.call('HSET', meta, 'attempt', attempt)
elseif state[3] ~= attempt then
  return {'refused', 'staged'}
end

local groups, is_open, staged = {}, {}, {}
for i = 1, #sessions, 3 do groups[#groups + 1] = sessions[i] end
for from = 1, #groups, PAGE do
  local scores = redis.call('ZMSCORE', first, unpack(groups, from, math.min(from + PAGE - 1, #groups)))
  for i = 1, #scores do
    local number = from + i - 1
    if scores[i] then
      is_open[#is_open + 1] = number
    else
      staged[#staged + 1] = sessions[3 * number - 1]
      staged[#staged + 1] = sessions[3 * number]
    end
  end
end
for from = 1, #staged, PAGE do
  redis.call('ZADD', outbox, unpack(staged, from, math.min(from + PAGE - 1, #staged)))
end
return {'ok', cmsgpack.pack(is_open)}
