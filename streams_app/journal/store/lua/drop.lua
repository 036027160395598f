#!lua flags=allow-oom
-- Removes the oldest segment.
--
-- KEYS    of the shard, see keys.py
-- token   text
-- first   text: its first offset
-- change  number: of this change, see segments.lua
--
-- Returns {"ok"}, also if it was removed before; {"kept"} if it is not the oldest one, or is open; or {"refused", "no-state" | "token"}.
-- Cost    O(1): another thread frees the memory.
-- include segments.lua

local refused = refusal()
if refused then return refused end
local segment = segment_at(arg.first)
if segment then
  local oldest = call('ZRANGE', segments, 0, 0)[1]
  if oldest ~= arg.first or not (segment.is_closed or first_after(arg.first)) then return {'kept'} end
end
remove(arg.first)
if staged_names()[1] == arg.first then remove_staged() end
changed(arg.change)
return {'ok'}
