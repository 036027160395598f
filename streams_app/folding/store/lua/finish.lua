#!lua flags=allow-oom
-- Removes acknowledged records from the outbox.
--
-- KEYS[1] meta      hash
-- KEYS[2] outbox    zset
-- ARGV[1] token     text
-- ARGV[2] ranges    msgpack array: lowest first offset, highest one, and the number of acknowledged records between them
--
-- A range that holds another number of records stays as it is: something there was not acknowledged. So does one whose ends have
-- left before: a copy of the request that comes late may find others between them.
--
-- Returns {"ok", records removed, records left} or {"refused", "no-state" | "token"}.
-- Cost    O(ranges log outbox + n): about 5 us a range, 1 us a record. Repeating it changes nothing.
local meta, outbox = KEYS[1], KEYS[2]
local token, ranges = ARGV[1], cmsgpack.unpack(ARGV[2])

local state = redis.call('HMGET', meta, 'token', 'fence')
if not state[1] or not state[2] then return {'refused', 'no-state'} end
if state[1] ~= token then return {'refused', 'token'} end
local removed = 0
for i = 1, #ranges, 3 do
  local from, to = string.format('%.0f', ranges[i]), string.format('%.0f', ranges[i + 1])
  local ends = from == to or redis.call('ZCOUNT', outbox, from, from) > 0 and redis.call('ZCOUNT', outbox, to, to) > 0
  if ends and redis.call('ZCOUNT', outbox, from, to) == ranges[i + 2] then
    removed = removed + redis.call('ZREMRANGEBYSCORE', outbox, from, to)
  end
end
return {'ok', removed, redis.call('ZCOUNT', outbox, '-inf', state[2])}
