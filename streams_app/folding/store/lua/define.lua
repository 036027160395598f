#!lua flags=allow-oom
-- Stores the definition of the fold once nothing stored under the former one is left.
--
-- KEYS[1] meta        hash
-- KEYS[2] first       zset
-- KEYS[3] outbox      zset
-- ARGV[1] token       text
-- ARGV[2] definition  text
--
-- Returns {"ok"} or {"refused", "no-state" | "token" | "not-drained"}.
-- Cost    O(1).
local meta, first, outbox = KEYS[1], KEYS[2], KEYS[3]
local token, definition = ARGV[1], ARGV[2]

local state = redis.call('HMGET', meta, 'token', 'fence')
if not state[1] or not state[2] then return {'refused', 'no-state'} end
if state[1] ~= token then return {'refused', 'token'} end
if redis.call('ZCOUNT', first, '-inf', state[2]) + redis.call('ZCOUNT', outbox, '-inf', state[2]) > 0 then return {'refused', 'not-drained'} end
redis.call('HSET', meta, 'definition', definition)
return {'ok'}
