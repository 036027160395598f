#!lua flags=allow-oom,no-writes
-- The next blocks of a key behind an offset, across segments, whatever their form is now.
--
-- KEYS       of the shard, see keys.py
-- prefix     text: the key and its terminator, as members begin with it
-- after      number: last offset that the reader has had; -1 = none
-- max_bytes  number: no further block is returned once there are so many bytes of them
--
-- A segment and its form are looked up here, so that a swap or a drop comes before or after all of it. Blocks may begin at or below
-- "after", and one may hold other keys: the reader filters.
--
-- Returns {"gone", floor, fence} where events behind "after" are removed; {"gap", first, last, fence, floor, why} where offsets are not kept
--         ("retention": the source had lost them; "damaged": Redis has); {"found", up to, fence, floor, array of blocks}: there is no
--         other event of the key up to that offset; {"nothing", up to, fence, floor}, which may be less than the fence; {"none"} where
--         there is no state.
-- Cost    O(blocks + segments): about 5 us each, at most 500 and 64 a call, and 1 ms a MB.
-- include segments.lua

local BLOCKS, SEGMENTS = 500, 64
if not state.fence then return {'none'} end
local fence, prefix = tonumber(state.fence), arg.prefix
local oldest = call('ZRANGE', segments, 0, 0)[1]
local floor = tonumber(oldest or fence + 1)
if arg.after + 1 < floor then return {'gone', text(floor), text(fence)} end
local up_to, bytes, found = arg.after, 0, {}

-- Collects the blocks of one segment; whether it has come to their end.
local function collect(blocks, last, is_packed)
  local start = '[' .. prefix .. struct.pack('>I8', up_to + 1)
  while true do
    local block = call('ZRANGEBYLEX', blocks, start, '+', 'LIMIT', 0, 1)[1]
    if not block then return true end
    -- What follows the terminator is an offset, whose first byte is never 255; else it was an escaped byte of a longer key.
    local is_of_key = block:sub(1, #prefix) == prefix and block:byte(#prefix + 1) ~= 255
    local to = is_of_key and struct.unpack('>I8', block, #prefix + 1)
    if not to then
      -- Of a later key: in a packed segment it may begin with rows of this one, which are the last of them.
      if is_packed then found[#found + 1], bytes = block, bytes + #block end
      return true
    end
    -- Of a script that died half-way: what is up to the fence is in other blocks, too.
    if to > last then return true end
    found[#found + 1], bytes = block, bytes + #block
    up_to, start = to, '[' .. prefix .. struct.pack('>I8', to + 1)
    if bytes >= arg.max_bytes or #found >= BLOCKS then return false end
  end
end

for _ = 1, SEGMENTS do
  if up_to >= fence or bytes >= arg.max_bytes or #found >= BLOCKS then break end
  local first = first_up_to(up_to + 1)
  local segment = first and segment_at(first)
  local after = first_after(first or '-inf')
  local last = after and tonumber(after) - 1 or fence
  local why = nil
  if not segment or (segment.entries > 0 and call('EXISTS', blocks_key(first, segment)) == 0) then
    why = 'damaged'
  elseif segment.form == 'gap' then
    why = 'retention'
  end
  if why and #found > 0 then break end
  if why then return {'gap', text(up_to + 1), text(last), text(fence), text(floor), why} end
  if not collect(blocks_key(first, segment), last, segment.form == 'packed') then break end
  up_to = last
end
if #found > 0 then return {'found', text(up_to), text(fence), text(floor), found} end
return {'nothing', text(up_to), text(fence), text(floor)}
