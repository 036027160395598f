-- The common beginning of all scripts of a shard: its keys, helpers, and the range in progress.
-- include fenced.lua
local due, first, outbox, prefix, flush, drop, dropped = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local ids_prefix = KEYS[9]
-- Format of a shard while its outbox may have an entry of several records. A worker of an older version ends when it reads one.
local BLOCKS = '2'
local PAGE = 4000 -- values in one call: Lua passes at most some 8 000
read_marks('clock', 'epoch', 'to', 'cursor')

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

-- Makes the shard readable for older versions again once its outbox is empty.
local function drop_format()
  if state.format == BLOCKS and call('ZCARD', outbox) == 0 then call('HDEL', meta, 'format') end
end

-- Drops the range in progress, because it is complete or abandoned. The next range begins after the fence.
local function drop_range()
  if state.to then call('HDEL', meta, 'to', 'cursor', 'cap', 'arrived', 'digest', 'quiet') end
end
