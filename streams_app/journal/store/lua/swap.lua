#!lua flags=allow-oom
-- Replaces the blocks of a segment by the staged ones.
--
-- KEYS    of the shard, see keys.py
-- token   text
-- first   text: first offset of the segment
-- about   text: description of the segment afterwards, with the generation of the staged blocks
-- blocks  number of staged blocks
-- change  number: of this change, see segments.lua
--
-- Returns {"ok"}, also if it was done before; {"gone"} if the segment was removed, or other blocks are staged; or {"refused", "no-state" |
--         "token" | "fence"}. "fence": Redis may have lost the end of the segment since its blocks were read.
-- Cost    O(1): another thread frees the memory.
-- include segments.lua

local refused = refusal()
if refused then return refused end
local stored, packed, staged = segment_at(arg.first), unpacked(arg.about), staged_names()
if not stored then return {'gone'} end
if packed.last > tonumber(state.fence) then return {'refused', 'fence'} end
if stored.generation ~= packed.generation then
  local is_staged = staged[1] == arg.first and staged[2] == packed.generation and staged[3] == stored.generation
  if not is_staged or call('ZCARD', blocks_key(arg.first, packed)) ~= arg.blocks then return {'gone'} end
  call('HSET', about, arg.first, arg.about)
end
remove_staged()
changed(arg.change)
return {'ok'}
