-- The common beginning of all scripts of a journal's partition: its keys, and functions for its segments.
-- include fenced.lua
local segments, about, blocks_of = KEYS[2], KEYS[3], KEYS[4]

-- Offsets as text: tostring() would write large ones as 1e+15.
local function text(offset) return string.format('%.0f', offset) end

-- Returns the description of the segment with this first offset; nil if there is none.
local function segment_at(first)
  local found = call('HGET', about, first)
  return found and unpacked(found)
end

-- Stores the number of a change that does not move the fence. Call this last, because a script that failed half-way is repeated.
local function changed(number)
  if number > tonumber(call('HGET', meta, 'change') or 0) then call('HSET', meta, 'change', number) end
end

local function blocks_key(first, segment) return blocks_of .. first .. ':' .. segment.generation end

-- Returns the first offset of the segment that contains an offset, or of the last one before it; nil if there is none.
local function first_up_to(offset) return call('ZREVRANGEBYSCORE', segments, offset, '-inf', 'LIMIT', 0, 1)[1] end

local function first_after(offset) return call('ZRANGEBYSCORE', segments, '(' .. offset, '+inf', 'LIMIT', 0, 1)[1] end

-- Returns {first offset of the segment that is being packed, generation of the staged blocks, generation of its own blocks}; empty if no
-- segment is being packed.
local function staged_names()
  local found = call('HGET', about, 'staged')
  return found and unpacked(found) or {}
end

-- Unlinks the leftover blocks of a packing: those in "staged" that are not the blocks of their segment.
local function remove_staged()
  local names = staged_names()
  if not names[1] then return end
  local segment = segment_at(names[1])
  for i = 2, #names do
    if not segment or segment.generation ~= names[i] then call('UNLINK', blocks_of .. names[1] .. ':' .. names[i]) end
  end
  call('HDEL', about, 'staged')
end

-- Removes a segment. The entry in "about" is removed last, because it names the blocks.
local function remove(first)
  local segment = segment_at(first)
  call('ZREM', segments, first)
  if segment then call('UNLINK', blocks_key(first, segment)) end
  call('HDEL', about, first)
end
