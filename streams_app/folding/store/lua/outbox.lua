#!lua flags=allow-oom,no-writes
-- Reads entries of the outbox: sealed records that are not acknowledged yet. An entry has the records of one script, in a row.
--
-- KEYS   of the shard, see shared/shard.lua
-- token  text
-- above  only entries with a first offset above this one are read
-- page   number of entries after which no further first offset is read
--
-- Returns {"ok", {entry, first offset, ...}} in the order of first offsets, or {"refused", "no-state" | "token"}.
-- Cost    O(page log n): about 2 us an entry, and some ms for 1 MB of entries.
-- include shard.lua
-- Size of the entries, in bytes, after which no further one is read.
local MAX_BYTES = 1000000

local refused = refusal()
if refused then return refused end
local found, bytes, above = {}, 0, string.format('%.0f', arg.above)
while #found < 2 * arg.page and bytes < MAX_BYTES do
  local head = call('ZRANGEBYSCORE', outbox, '(' .. above, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if not head[1] then break end
  above = head[2]
  -- All entries with this first offset, because the next page begins above it: scripts that failed half-way leave several.
  for _, entry in ipairs(call('ZRANGEBYSCORE', outbox, above, above)) do
    found[#found + 1], found[#found + 2], bytes = entry, above, bytes + #entry
  end
end
return {'ok', found}
