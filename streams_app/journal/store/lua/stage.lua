#!lua
-- Closes a segment, and writes blocks that will replace its own.
--
-- KEYS        of the shard, see keys.py
-- token       text
-- first       text: first offset of the segment
-- generation  text: generation of the new blocks; "" = only close the segment
-- begins      boolean: whether this is the first call for these blocks, which removes the blocks that were staged before
-- blocks      array: encoded blocks, at most some thousand
-- change      number: of this change, see segments.lua
--
-- Returns {"ok"}; {"gone"} if the segment was removed or is not raw, or if other blocks are staged; or {"refused", "no-state" | "token"}.
-- Cost    O(blocks * log(blocks)): about 3 us each, and 1 ms a MB.
-- include segments.lua

local refused = refusal()
if refused then return refused end
local segment = segment_at(arg.first)
if not segment then return {'gone'} end
if not segment.is_closed then
  segment.is_closed = true
  call('HSET', about, arg.first, pack(segment))
end
if arg.generation == '' then
  changed(arg.change)
  return {'ok'}
end
if segment.form ~= 'raw' then return {'gone'} end
if arg.begins then
  remove_staged()
  call('HSET', about, 'staged', pack({arg.first, arg.generation, segment.generation}))
end
-- Otherwise a late copy of a request, whose blocks were removed since, would write blocks that no entry names.
local staged = staged_names()
if staged[1] ~= arg.first or staged[2] ~= arg.generation then return {'gone'} end
local members = {}
for _, block in ipairs(arg.blocks) do members[#members + 1], members[#members + 2] = 0, block end
for from = 1, #members, 4000 do
  call('ZADD', blocks_of .. arg.first .. ':' .. arg.generation, unpack(members, from, math.min(from + 3999, #members)))
end
changed(arg.change)
return {'ok'}
