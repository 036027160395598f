#!lua flags=allow-oom,no-writes
-- Reads the blocks of all keys of a segment, in the order of keys and offsets.
--
-- KEYS        of the shard, see keys.py
-- first       text: first offset of the segment
-- generation  text: generation of its blocks, or of its staged blocks
-- after       text: position after which to continue, see block.scan_position(); "" = from the start
-- max_bytes   number: no further block is returned after this many bytes
--
-- Returns {"ok", array of blocks}, with an empty array after the last block; {"none"} if the segment was removed or has other blocks now.
-- Cost    O(blocks): about 2 us each, at most 1 000 per call, and 3 ms a MB.
-- include segments.lua

local BLOCKS, AT_ONCE, SMALL = 1000, 4, 10000
local segment, names = segment_at(arg.first), staged_names()
local is_its_own = segment and segment.generation == arg.generation
if not is_its_own and (names[1] ~= arg.first or names[2] ~= arg.generation) then return {'none'} end
local blocks, found, bytes = blocks_of .. arg.first .. ':' .. arg.generation, {}, 0
local start = arg.after == '' and '-' or '(' .. arg.after
local at_once = 1
while bytes < arg.max_bytes and #found < BLOCKS do
  local some = call('ZRANGEBYLEX', blocks, start, '+', 'LIMIT', 0, at_once)
  for _, block in ipairs(some) do
    if bytes >= arg.max_bytes then break end
    found[#found + 1], bytes, start = block, bytes + #block, '(' .. block
  end
  if #some < at_once then break end
  -- Large blocks come one at a time: each is copied several times on its way to the client.
  at_once = #found[#found] < SMALL and AT_ONCE or 1
end
return {'ok', found}
