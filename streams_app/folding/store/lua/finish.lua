#!lua flags=allow-oom
-- Removes entries from the outbox after all their records were acknowledged.
--
-- KEYS    of the shard, see shared/shard.lua
-- token   text
-- ranges  array: lowest first offset, highest first offset and number of acknowledged entries of each range
--
-- A range that has another number of entries is not removed, because one of them was not acknowledged. A range is not removed either if
-- the entry at one of its ends is missing: a late copy of the request might otherwise remove entries that were sealed since.
--
-- Returns {"ok", entries removed, entries left} or {"refused", "no-state" | "token"}.
-- Cost    O(ranges log outbox + n): about 5 us a range, 1 us an entry. Repeating it changes nothing.
-- include shard.lua

local refused = refusal()
if refused then return refused end
local removed, ranges = 0, arg.ranges
for i = 1, #ranges, 3 do
  local from, to = string.format('%.0f', ranges[i]), string.format('%.0f', ranges[i + 1])
  local ends = from == to or call('ZCOUNT', outbox, from, from) > 0 and call('ZCOUNT', outbox, to, to) > 0
  if ends and call('ZCOUNT', outbox, from, to) == ranges[i + 2] then
    removed = removed + call('ZREMRANGEBYSCORE', outbox, from, to)
  end
end
drop_format()
return {'ok', removed, call('ZCARD', outbox)}
