#!lua flags=allow-oom
-- Moves the fence over offsets that the log no longer has (retention overtook the worker).
--
-- KEYS[1] meta          hash
-- KEYS[2] due           zset
-- KEYS[3] first         zset
-- KEYS[4] outbox        zset
-- KEYS[5] group_prefix  prefix of the sidecar hashes (same hash tag)
-- ARGV[1] token         text
-- ARGV[2] fence         offset expected
-- ARGV[3] to            offset of the new fence
--
-- Returns {"ok"}; {"again"}: to be called again, see beyond.lua; or {"refused", "no-state" | "token" | "fence" | "open-groups"}.
-- Cost    O(1). No group may be open: a record must not span offsets that are lost.
local meta, due, first, outbox, prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, fence, to = ARGV[1], ARGV[2], ARGV[3]
-- include beyond.lua

local state = redis.call('HMGET', meta, 'token', 'fence')
if not state[2] then return {'refused', 'no-state'} end
if state[1] ~= token then return {'refused', 'token'} end
if state[2] == to then return {'ok'} end
if state[2] ~= fence then return {'refused', 'fence'} end
if not drop_beyond(fence) then return {'again'} end
if redis.call('ZCARD', first) > 0 then return {'refused', 'open-groups'} end
redis.call('HSET', meta, 'fence', to)
return {'ok'}
