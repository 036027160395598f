-- The sealed records that a script adds to the outbox.

-- Returns the packed record of a group for the outbox. "names" is a map, name, value, name ... in a row, or a packed map.
local function record_of(group, g, reason, due_ms, names)
  if type(names) ~= 'string' then names = pack(names) end
  return '\154' .. pack(group, g.first, g.last, g.events, g.low, g.high, reason, due_ms, arg.partitions) .. names -- an array of ten
end

-- Adds the sealed records of a script, in a row, to the outbox as one entry, with the lowest of their first offsets. The format is written
-- first: if the script fails after it, older versions leave the shard alone, whereas their workers would end when they read the entry.
local function add_block(lowest, records, count)
  if count > 1 and arg.singly then return in_pages('ZADD', outbox, (singles(records))) end
  if count > 1 and not state.format then call('HSET', meta, 'format', BLOCKS) end
  if count > 0 then call('ZADD', outbox, lowest, records) end
end
