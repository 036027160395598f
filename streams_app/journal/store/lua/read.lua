#!lua flags=allow-oom,no-writes
-- Reads the next blocks of a key after an offset, from all segments, raw or packed.
--
-- KEYS       of the shard, see keys.py
-- prefix     text: the escaped key and its terminator, with which the blocks of the key begin
-- after      number: last offset that was read; -1 = none
-- max_bytes  number: no further block is returned after this many bytes
--
-- One script finds the segments and reads their blocks, so that a swap or a drop happens entirely before or after it. Blocks may begin at
-- or below "after", and may contain other keys: the reader must filter.
--
-- Returns {"gone", floor, fence} if events after "after" were removed;
--         {"gap", first, last, fence, floor, why} if offsets are missing ("retention": the source had lost them; "damaged": Redis has);
--         {"found", up to, fence, floor, array of blocks}: the key has no other event up to that offset;
--         {"nothing", up to, fence, floor}: the key has no event up to that offset, which may be below the fence;
--         {"none"} if there is no state.
-- Cost    O(blocks + segments): about 5 us each, at most 500 blocks and 64 segments per call, and 1 ms a MB.
-- include segments.lua

local BLOCKS, SEGMENTS = 500, 64
if not state.fence then return {'none'} end
local fence, prefix = tonumber(state.fence), arg.prefix
local oldest = call('ZRANGE', segments, 0, 0)[1]
local floor = tonumber(oldest or fence + 1)
if arg.after + 1 < floor then return {'gone', text(floor), text(fence)} end
local up_to, bytes, found = arg.after, 0, {}

-- Collects the blocks of the key in one segment. Returns false if it stopped at a limit.
local function collect(blocks, last, is_packed)
  local start = '[' .. prefix .. struct.pack('>I8', up_to + 1)
  while true do
    local block = call('ZRANGEBYLEX', blocks, start, '+', 'LIMIT', 0, 1)[1]
    if not block then return true end
    -- The first byte of an offset is never 255. If 255 follows the terminator, both are an escaped byte of a longer key.
    local is_of_key = block:sub(1, #prefix) == prefix and block:byte(#prefix + 1) ~= 255
    local to = is_of_key and struct.unpack('>I8', block, #prefix + 1)
    if not to then
      -- A block of a later key: in a packed segment, it may begin with the last rows of this key.
      if is_packed then found[#found + 1], bytes = block, bytes + #block end
      return true
    end
    -- This block was left by a script that failed half-way: its events up to the fence are also in other blocks.
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
