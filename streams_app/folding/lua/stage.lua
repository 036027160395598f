#!lua
-- Does ahead of fold.lua what would hold Redis for too long together with the rest of the range: puts sessions that begin and end
-- within it into the outbox, opens groups. All of it lies beyond the fence, by first offset: nobody sees it before the fence has
-- moved, and whoever begins anew drops it.
--
-- KEYS[1] meta          hash
-- KEYS[2] due           zset
-- KEYS[3] first         zset
-- KEYS[4] outbox        zset
-- KEYS[5] group_prefix  prefix of the sidecar hashes (same hash tag)
-- ARGV[1] token         text
-- ARGV[2] fence         offset expected
-- ARGV[3] to            offset of the fence after the range
-- ARGV[4] attempt       text: of all portions of one attempt to fold, and of its fold.lua
-- ARGV[5] begin         "1" = its first portion: what another attempt has staged is dropped
-- ARGV[6] sessions      msgpack array, three values for each: group, first offset, packed record
-- ARGV[7] plain         msgpack array, as in fold.lua
-- ARGV[8] arrived       ms, "" = it had been waiting; as in fold.lua
-- ARGV[9] gaps_close    "1" = gaps close groups while folding: silence is counted from the arrival
--
-- Returns {"ok", positions in "sessions", positions in "plain"}: msgpack arrays of those whose group is open; they are not staged
--         {"already"} when this very range was folded by this owner and the reply was lost
--         {"refused", "no-state" | "token" | "fence" | "staged"}
-- Cost    about 3 us a session, 5 us a group. Repeating it changes nothing.
local meta, due, first, outbox, prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, fence, to, attempt, begin = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1'
local sessions, plain, arrived = cmsgpack.unpack(ARGV[6]), cmsgpack.unpack(ARGV[7]), tonumber(ARGV[8])
local gaps_close = ARGV[9] == '1'
local PAGE = 4000 -- values in one call
-- include beyond.lua

local state = redis.call('HMGET', meta, 'token', 'fence', 'attempt', 'clock')
if not state[2] then return {'refused', 'no-state'} end
if state[1] ~= token then return {'refused', 'token'} end
if state[2] == to then return {'already'} end
if state[2] ~= fence then return {'refused', 'fence'} end
if begin then
  drop_beyond(fence)
  redis.call('HSET', meta, 'attempt', attempt)
elseif state[3] ~= attempt then
  return {'refused', 'staged'}
end

local fence_offset = tonumber(fence)
-- Splits by whether the group is open: positions of those that are, and a call for each of the others.
local function split(values, step, otherwise)
  local open = {}
  for from = 1, #values / step, PAGE do
    local members, till = {}, math.min(from + PAGE - 1, #values / step)
    for i = from, till do members[i - from + 1] = values[(i - 1) * step + 1] end
    local scores = redis.call('ZMSCORE', first, unpack(members))
    for i = from, till do
      local score = scores[i - from + 1]
      if score and tonumber(score) <= fence_offset then
        open[#open + 1] = i
      else
        otherwise((i - 1) * step)
      end
    end
  end
  return open
end
local function add(key, values)
  for from = 1, #values, PAGE do
    redis.call('ZADD', key, unpack(values, from, math.min(from + PAGE - 1, #values)))
  end
end

local staged, to_due, to_first = {}, {}, {}
local open_sessions = split(sessions, 3, function(at)
  staged[#staged + 1] = sessions[at + 2]
  staged[#staged + 1] = sessions[at + 3]
end)
local silent_from = gaps_close and math.max(arrived or 0, tonumber(state[4] or '0')) or 0
local open_groups = split(plain, 4, function(at)
  local group, fields = plain[at + 1], plain[at + 4]
  local key = prefix .. group
  if redis.call('HSET', key, unpack(fields)) < #fields / 2 then -- a leftover of an older state, or a copy of this script
    redis.call('DEL', key)
    redis.call('HSET', key, unpack(fields))
  end
  to_due[#to_due + 1], to_due[#to_due + 2] = math.max(plain[at + 3], silent_from), group
  to_first[#to_first + 1], to_first[#to_first + 2] = plain[at + 2], group
end)
add(outbox, staged)
add(due, to_due)
add(first, to_first)
return {'ok', cmsgpack.pack(open_sessions), cmsgpack.pack(open_groups)}
