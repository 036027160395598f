-- What every script of a journal's partition begins with: its keys, and what is known of its segments.
-- include fenced.lua
local segments, about, blocks_of = KEYS[2], KEYS[3], KEYS[4]

-- Offsets as text: tostring() would write large ones as 1e+15.
local function text(offset) return string.format('%.0f', offset) end

-- What a segment is, nil if there is none of that first offset.
local function segment_at(first)
  local found = call('HGET', about, first)
  return found and unpacked(found)
end

-- Says that a change is made which the fence does not tell; called last, as those of a script that died half-way are made once more.
local function changed(number)
  if number > tonumber(call('HGET', meta, 'change') or 0) then call('HSET', meta, 'change', number) end
end

local function blocks_key(first, segment) return blocks_of .. first .. ':' .. segment.generation end

-- First offset of the segment that holds an offset, or of the last one before it; nil if there is none.
local function first_up_to(offset) return call('ZREVRANGEBYSCORE', segments, offset, '-inf', 'LIMIT', 0, 1)[1] end

local function first_after(offset) return call('ZRANGEBYSCORE', segments, '(' .. offset, '+inf', 'LIMIT', 0, 1)[1] end

-- First offset of the segment that is being packed, generation of the staged blocks, generation of its own; empty if none is.
local function staged_names()
  local found = call('HGET', about, 'staged')
  return found and unpacked(found) or {}
end

-- Unlinks the blocks that a packing has left: those of "staged" that are not the blocks of their segment.
local function remove_staged()
  local names = staged_names()
  if not names[1] then return end
  local segment = segment_at(names[1])
  for i = 2, #names do
    if not segment or segment.generation ~= names[i] then call('UNLINK', blocks_of .. names[1] .. ':' .. names[i]) end
  end
  call('HDEL', about, 'staged')
end

-- Removes a segment. "about" goes last: it names the blocks as long as there are any.
local function remove(first)
  local segment = segment_at(first)
  call('ZREM', segments, first)
  if segment then call('UNLINK', blocks_key(first, segment)) end
  call('HDEL', about, first)
end
