#!lua flags=allow-oom,no-writes
-- Reads sealed records that are not acknowledged yet.
--
-- KEYS   of the shard, see shared/shard.lua
-- token  text
-- above  only records with a first offset above this one are read
-- page   maximum number of records
--
-- Returns {"ok", {packed record, first offset, ...}} in the order of first offsets, or {"refused", "no-state" | "token"}.
-- Cost    O(log n + page).
-- include shard.lua

local refused = refusal()
if refused then return refused end
return {'ok', call('ZRANGEBYSCORE', outbox, '(' .. string.format('%.0f', arg.above), '+inf', 'WITHSCORES', 'LIMIT', 0, arg.page)}
