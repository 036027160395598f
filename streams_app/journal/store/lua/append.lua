#!lua
-- Appends the blocks of a range of offsets to a segment, opens the segment if it is new, and moves the fence to the end of the range.
--
-- KEYS    of the shard, see keys.py
-- token   text
-- fence   text: the expected fence
-- to      text: last offset of the range; the fence afterwards
-- first   text: first offset of the segment; a new one begins right after the fence
-- about   text: description of the segment with these blocks; a segment of the form "gap" has no blocks
-- blocks  array: encoded blocks, at most some thousand
-- clock   text: clock of the shard afterwards, ms
-- log     text: fingerprints of the appended records
--
-- Returns {"ok"}; {"already"} if an earlier call, whose reply was lost, has appended the range; or {"refused", "no-state" | "token" |
--         "fence" | "closed" | "first"}. "closed": the segment receives no more events; "first": it is new and does not begin after
--         the fence.
-- Cost    O(blocks * log(blocks of the segment)): about 3 us each, and 1 ms a MB.
-- include segments.lua

if state.token == arg.token and state.fence == arg.to then return {'already'} end
local refused = refusal()
if refused then return refused end
local stored, segment = segment_at(arg.first), unpacked(arg.about)
-- Being in "about" is not enough: a script may have failed before it added the segment to "segments".
local is_new = not call('ZSCORE', segments, arg.first)
if not is_new and ((stored and stored.is_closed) or first_after(arg.first)) then return {'refused', 'closed'} end
if is_new and arg.first ~= text(tonumber(state.fence) + 1) then return {'refused', 'first'} end
-- The description comes first, because the removal of the segment finds the blocks by it.
call('HSET', about, arg.first, arg.about)
if is_new then call('ZADD', segments, arg.first, arg.first) end
local blocks, members = blocks_key(arg.first, segment), {}
for i, block in ipairs(arg.blocks) do
  members[#members + 1], members[#members + 2] = 0, block
  if #members == 4000 or i == #arg.blocks then
    call('ZADD', blocks, unpack(members))
    members = {}
  end
end
-- The fence comes last: a script that failed half-way is repeated from the same fence.
call('HSET', meta, 'clock', arg.clock, 'log', arg.log, 'fence', arg.to)
return {'ok'}
