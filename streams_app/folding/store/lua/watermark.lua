#!lua flags=allow-oom,no-writes
-- Reads the low watermark of a shard: the lowest source offset whose effect is not delivered yet. A watermark stays valid,
-- and any worker may read it. One script reads it, because several reads would be wrong if Redis were wiped between them.
--
-- KEYS  of the shard, see shared/shard.lua
--
-- Returns the offset as text, or nil if the shard has no state.
-- Cost    O(1).
-- include shard.lua

if not state.fence then return false end
local low = tonumber(state.fence) + 1
for _, key in ipairs({first, outbox}) do
  local head = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if head[2] then low = math.min(low, tonumber(head[2])) end
end
return string.format('%.0f', low)
