#!lua flags=allow-oom
-- Reads what is sealed and not yet acknowledged. Sealed ahead of a fence that has not moved is not sealed: that is undone before.
--
-- KEYS[1] meta          hash
-- KEYS[2] due           zset
-- KEYS[3] first         zset
-- KEYS[4] outbox        zset
-- KEYS[5] group_prefix  prefix of the sidecar hashes (same hash tag)
-- ARGV[1] token         text
-- ARGV[2] fence         offset expected
-- ARGV[3] above         first offsets above this one
-- ARGV[4] page          records at most
--
-- Returns {"ok", {packed record, first offset, ...}} in the order of first offsets; {"again"}: to be called again, see beyond.lua; or
--         {"refused", "no-state" | "token" | "fence"}.
-- Cost    O(log n + page).
local meta, due, first, outbox, prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, fence, above, page = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
-- include beyond.lua

local state = redis.call('HMGET', meta, 'token', 'fence')
if not state[2] then return {'refused', 'no-state'} end
if state[1] ~= token then return {'refused', 'token'} end
if state[2] ~= fence then return {'refused', 'fence'} end
if not drop_beyond(fence) then return {'again'} end
return {'ok', redis.call('ZRANGEBYSCORE', outbox, '(' .. above, fence, 'WITHSCORES', 'LIMIT', 0, page)}
