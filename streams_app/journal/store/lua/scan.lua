#!lua flags=allow-oom,no-writes
-- Blocks of a segment in the order of their keys and offsets, whatever their keys are.
--
-- KEYS        of the shard, see keys.py
-- first       text: first offset of the segment
-- generation  text: of its blocks, as its owner or status said; also of those that are being written
-- after       text: position behind which it goes on, see block.scan_position(); "" = from the start
-- max_bytes   number: no further block is returned once there are so many bytes of them
--
-- Returns {"ok", array of blocks}, an empty one at the end; {"packed", msgpack of an array of many blocks}; {"none"} where these
--         blocks are no longer those of the segment.
-- Cost    O(blocks): about 2 us each, at most 1 000 a call, and 3 ms a MB.
-- include segments.lua

local BLOCKS, AT_ONCE, AT_ONCE_OF_SMALL, SMALL, MANY = 1000, 4, 16, 10000, 100
local segment, names = segment_at(arg.first), staged_names()
local is_its_own = segment and segment.generation == arg.generation
if not is_its_own and (names[1] ~= arg.first or names[2] ~= arg.generation) then return {'none'} end
local blocks, found, bytes = blocks_of .. arg.first .. ':' .. arg.generation, {}, 0
local start = arg.after == '' and '-' or '(' .. arg.after
local at_once = 1
-- A block of a raw segment has at most what its largest key has received.
local largest = is_its_own and segment.form == 'raw' and (segment.largest or {})[1]
local most_at_once = largest and largest[2] < SMALL and AT_ONCE_OF_SMALL or AT_ONCE
while bytes < arg.max_bytes and #found < BLOCKS do
  local some = call('ZRANGEBYLEX', blocks, start, '+', 'LIMIT', 0, at_once)
  for _, block in ipairs(some) do
    if bytes >= arg.max_bytes then break end
    found[#found + 1], bytes, start = block, bytes + #block, '(' .. block
  end
  if #some < at_once then break end
  -- Large blocks come one at a time: each is copied several times on its way to the client.
  at_once = #found[#found] < SMALL and most_at_once or 1
end
-- Many as one string: a client in Python takes far longer for thousands of strings. Few may be large, and are not copied once more.
if #found > MANY then return {'packed', pack(found)} end
return {'ok', found}
