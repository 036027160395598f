#!lua flags=allow-oom
-- Removes acknowledged records from the outbox.
--
-- KEYS[1] meta      hash
-- KEYS[2] outbox    zset
-- ARGV[1] token     text
-- ARGV[2] offsets   msgpack array: first offset of each acknowledged record (unique within a shard)
--
-- Returns {"ok", records removed, records left} or {"refused", "no-state" | "token"}.
-- Cost    O(n log outbox). Repeating it changes nothing.
local meta, outbox = KEYS[1], KEYS[2]
local token, offsets = ARGV[1], cmsgpack.unpack(ARGV[2])

local owner = redis.call('HGET', meta, 'token')
if not owner then return {'refused', 'no-state'} end
if owner ~= token then return {'refused', 'token'} end
local removed = 0
for i = 1, #offsets do
  local at = string.format('%.0f', offsets[i])
  removed = removed + redis.call('ZREMRANGEBYSCORE', outbox, at, at)
end
return {'ok', removed, redis.call('ZCARD', outbox)}
