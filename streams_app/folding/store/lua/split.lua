#!lua flags=allow-oom
-- Replaces entries of the outbox that have several records by an entry for each record, so that a worker of an older version can read them.
-- The owner calls it when it releases the shard, because the next owner may have another version, and when it finds an older worker.
--
-- KEYS   of the shard, see shared/shard.lua
-- token  text
-- above  number: only entries with a first offset above this one are read
-- limit  number of records after which no further entry is read
--
-- Returns {"ok", first offset of the last entry that was read, "" if there are no more} or {"refused", "no-state" | "token"}.
-- Cost    O(limit log n) and the records of one more entry: about 5 us a record. Repeating it changes nothing.
-- include shard.lua

local refused = refusal()
if refused then return refused end
if not state.format then return {'ok', ''} end

-- First all records, then the entry is removed: if the script fails in between, the next owner sends some records twice.
local function split(entry)
  local found, number = singles(entry)
  if number > 1 then
    in_pages('ZADD', outbox, found)
    call('ZREM', outbox, entry)
  end
  return number
end

local above, records = string.format('%.0f', arg.above), 0
while records < arg.limit do
  local head = call('ZRANGEBYSCORE', outbox, '(' .. above, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if not head[1] then
    drop_format(true)
    return {'ok', ''}
  end
  above = head[2]
  for _, entry in ipairs(call('ZRANGEBYSCORE', outbox, above, above)) do records = records + split(entry) end
end
return {'ok', above}
