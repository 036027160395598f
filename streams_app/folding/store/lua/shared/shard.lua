-- The common beginning of all scripts of a shard: its keys, helpers, and the range in progress.
-- include fenced.lua
local due, first, outbox, prefix, flush, drop, dropped = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local ids_prefix, open, timers = KEYS[9], KEYS[10], KEYS[11]
-- Formats of a shard that older versions cannot read: its outbox may have an entry of several records, or it may have packed groups.
local BLOCKS, PACKED = '2', '3'
local PAGE = 4000 -- values in one call: Lua passes at most some 8 000
read_marks('clock', 'epoch', 'to', 'cursor')

-- The first versions have no format numbers: they would take packed groups for remains of an older state, and their events would be lost.
-- They end if they claim the shard while "lost", the number of offsets that the broker has lost, is followed by these words.
local TOO_OLD = ' (the shard has packed groups, which this version of streams_app cannot read)'
local function offsets_lost() return (state.lost or '0'):match('^%d+') end

-- Makes the shard unreadable for older versions. Call it before the first packed group is written.
local function use_packed_format()
  if state.format == PACKED then return end
  read_marks('lost')
  call('UNLINK', open, timers) -- of an older state, which was lost: a state with packed groups has this format
  call('HSET', meta, 'format', PACKED, 'lost', offsets_lost() .. TOO_OLD)
  state.format = PACKED
end

-- Calls a command with many values, split into several calls.
local function in_pages(command, key, values)
  for from = 1, #values, PAGE do call(command, key, unpack(values, from, math.min(from + PAGE - 1, #values))) end
end
local function unlink(keys)
  for from = 1, #keys, PAGE do call('UNLINK', unpack(keys, from, math.min(from + PAGE - 1, #keys))) end
end

-- Splits packed records in a row: {first offset, packed record, ...}, and their number.
local function singles(records)
  local found, from, number = {}, 0, 0
  repeat
    local ends, record = cmsgpack.unpack_one(records, from)
    local till = ends == -1 and #records or ends
    found[#found + 1], found[#found + 2] = record[2], records:sub(from + 1, till)
    from, number = till, number + 1
  until ends == -1
  return found, number
end

-- Makes the shard readable for older versions again, once no group is packed and either the outbox is empty or its entries have one record
-- each, which "has_singles" says. If only the outbox is left, the shard gets the format of an outbox: by the command that restores "lost",
-- because a script that failed between two commands would leave a format without these words, which the next packed group would not get.
local function drop_format(has_singles)
  if not state.format or call('EXISTS', open) == 1 then return end
  if state.format == PACKED then
    read_marks('lost')
    call('UNLINK', timers) -- of groups that are closed
    call('HSET', meta, 'format', BLOCKS, 'lost', offsets_lost())
    state.format = BLOCKS
  end
  if has_singles or call('ZCARD', outbox) == 0 then
    call('HDEL', meta, 'format')
    state.format = nil
  end
end

-- Drops the range in progress, because it is complete or abandoned. The next range begins after the fence.
local function drop_range()
  if state.to then call('HDEL', meta, 'to', 'cursor', 'cap', 'arrived', 'digest', 'quiet') end
end
