-- An open group as stored: a hash of its changed names with, in one field, its numbers. The numbers are packed in the order of NUMBERS
-- in codec.py, with times and offsets as differences, which need less memory. A run of events in a request has the same encoding, as
-- the group that it would open.
local INFO = '\255' -- the field of the numbers; it is not UTF-8, so no changed name is equal to it

local function numbers_of(packed)
  local n = unpacked(packed)
  local opened = n[4]
  local score = opened + n[5]
  return {epoch = n[1], first = n[2], last = n[2] + n[3], opened = opened, score = score, events = n[6],
          low = opened + n[7], high = opened + n[7] + n[8], names = n[9], silent = score + (n[10] or 0), shorter = n[11] or 0,
          ids = n[12] or 0, duplicates = n[13] or 0}
end

local function packed_of(g)
  local silence, has_ids = math.max(0, g.silent - g.score), g.ids > 0 or g.duplicates > 0
  local is_short = g.shorter > 0 or has_ids
  return pack({state.epoch, g.first, g.last - g.first, g.opened, g.score - g.opened, g.events,
               g.low - g.opened, g.high - g.low, g.names, (silence > 0 or is_short) and silence or nil,
               is_short and g.shorter or nil, has_ids and g.ids or nil, has_ids and g.duplicates or nil})
end

-- Returns the numbers of an open group; nil if the stored group belongs to an older state.
local function open_group(key, opened_at)
  local packed = call('HGET', key, INFO)
  local g = packed and numbers_of(packed)
  return g and g.epoch == state.epoch and g.first == opened_at and g or nil
end

-- Returns the packed record of a group for the outbox. "names" is a map, or name, value, name ... in a row.
local function record_of(group, g, reason, due_ms, names)
  return pack({group, g.first, g.last, g.events, g.low, g.high, reason, due_ms, arg.partitions, names})
end

-- Adds the sealed records of a script, in a row, to the outbox as one entry, with the lowest of their first offsets. The format is written
-- first: if the script fails after it, older versions leave the shard alone, whereas their workers would end when they read the entry.
local function add_block(lowest, records, count)
  if count > 1 and arg.singly then return in_pages('ZADD', outbox, (singles(records))) end
  if count > 1 and state.format ~= BLOCKS then call('HSET', meta, 'format', BLOCKS) end
  if count > 0 then call('ZADD', outbox, lowest, records) end
end
