#!lua flags=allow-oom,no-writes
-- The low watermark of a shard: the lowest source offset whose effect is not yet delivered.
-- Read in one script: in pieces it is wrong as soon as Redis is wiped between them.
--
-- KEYS[1] meta    hash
-- KEYS[2] first   zset
-- KEYS[3] outbox  zset
--
-- Returns the offset as text, or nil where the shard has no state.
-- Cost    O(1).
local meta, first, outbox = KEYS[1], KEYS[2], KEYS[3]

local fence = redis.call('HGET', meta, 'fence')
if not fence then return false end
local low = tonumber(fence) + 1
for _, key in ipairs({first, outbox}) do
  local head = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if head[2] then low = math.min(low, tonumber(head[2])) end
end
return string.format('%.0f', low)
