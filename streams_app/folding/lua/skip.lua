#!lua flags=allow-oom
-- Moves the fence over offsets that the log no longer has (retention overtook the worker).
--
-- KEYS[1] meta    hash
-- KEYS[2] first   zset
-- ARGV[1] token   text
-- ARGV[2] fence   offset expected
-- ARGV[3] to      offset of the new fence
--
-- Returns {"ok"} or {"refused", "no-state" | "token" | "fence" | "open-groups"}.
-- Cost    O(1). No group may be open: a record must not span offsets that are lost.
local meta, first = KEYS[1], KEYS[2]
local token, fence, to = ARGV[1], ARGV[2], ARGV[3]

local state = redis.call('HMGET', meta, 'token', 'fence')
if not state[2] then return {'refused', 'no-state'} end
if state[1] ~= token then return {'refused', 'token'} end
if state[2] == to then return {'ok'} end
if state[2] ~= fence then return {'refused', 'fence'} end
if redis.call('ZCARD', first) > 0 then return {'refused', 'open-groups'} end
redis.call('HSET', meta, 'fence', to)
return {'ok'}
