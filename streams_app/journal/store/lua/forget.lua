#!lua flags=allow-oom
-- Replaces some blocks of a segment by blocks without the events of a key, for `streams-app forget`.
--
-- KEYS        of the shard, see keys.py
-- token       text
-- first       text: first offset of the segment
-- generation  text: generation of its blocks
-- about       text: description of the segment afterwards
-- removed     array: for each removed block its position, and the position after it, see block.scan_position()
-- added       array: encoded blocks
-- change      number: of this change, see segments.lua
--
-- Returns {"ok"}; {"gone"} if the segment was removed or has other blocks; or {"refused", "no-state" | "token"}.
-- Cost    O(blocks * log(blocks of the segment)): about 5 us each, and 1 ms a MB.
-- include segments.lua

local refused = refusal()
if refused then return refused end
local segment = segment_at(arg.first)
if not segment or segment.generation ~= arg.generation then return {'gone'} end
local blocks = blocks_key(arg.first, segment)
-- Removed first: a block that keeps its last event keeps its position, too.
for i = 1, #arg.removed, 2 do call('ZREMRANGEBYLEX', blocks, '[' .. arg.removed[i], '(' .. arg.removed[i + 1]) end
for _, block in ipairs(arg.added) do call('ZADD', blocks, 0, block) end
call('HSET', about, arg.first, arg.about)
changed(arg.change)
return {'ok'}
