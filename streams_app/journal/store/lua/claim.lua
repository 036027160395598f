#!lua flags=allow-oom
-- Makes a fresh token the owner of a journal's partition, and removes what scripts and packings have left that did not come to an end.
--
-- KEYS           of the shard, see keys.py
-- token          text: of the claimant, random
-- owner          text: name of the worker, for people
-- topic_id       text: of the source as the broker knows it; "" = unknown. Stored where none is; another one is left and returned
-- partitions     number: how many the source has, for whoever reads all of them
-- begin          text: fence of the state that is created where there is none; "" = create none
-- clock          text: clock of the state that is created, ms
-- fence_at_most  text: the log differs from this offset on: segments from that of this offset on are removed; "" = it does not
--
-- Returns {"ok" | "new", fence, clock, topic_id, log, array of first offset and what the segment is of all segments in their order}; {"more"}
--         where segments are left to be removed: call it again; {"none"} where there is no state and none is created.
-- Cost    O(segments): about 3 us each, and 10 us for each that is removed, at most 1 000 a call.
-- include segments.lua

read_marks('clock', 'topic_id', 'log')
local REMOVED = 1000
local outcome, firsts, is_whole = 'ok', call('ZRANGE', segments, 0, -1), true
local fields, of_segments = call('HGETALL', about), {}
for i = 1, #fields, 2 do of_segments[fields[i]] = fields[i + 1] end
-- "about" is written before and removed after: where it lacks a segment, Redis has lost it, and the log is read once more.
for _, first in ipairs(firsts) do is_whole = is_whole and of_segments[first] end
-- A script that died leaves one that is not listed: one above the fence, or the oldest that it removed. Where none is listed and "about"
-- has some up to the fence, their list is lost; a last one whose removal died is read once more, too.
if not firsts[1] then
  for first in pairs(of_segments) do is_whole = is_whole and (tonumber(first) or math.huge) > tonumber(state.fence or -1) end
end
if not (state.fence and state.clock and is_whole) then
  if arg.begin == '' then return {'none'} end
  outcome, state = 'new', {fence = arg.begin, clock = arg.clock, topic_id = arg.topic_id, log = ''}
  call('HDEL', meta, 'fence')
end
local fence, is_known = tonumber(state.fence), outcome == 'ok'
if is_known and arg.fence_at_most ~= '' and tonumber(arg.fence_at_most) <= fence then
  local other = tonumber(arg.fence_at_most)
  fence = tonumber(first_up_to(other) or other) - 1
  -- First: what the segments above it hold is unread before it is removed.
  call('HSET', meta, 'fence', text(fence))
end
remove_staged()
of_segments.staged = nil
local found, lost = {}, {}
for _, first in ipairs(firsts) do
  if is_known and tonumber(first) <= fence then
    found[#found + 1], found[#found + 2] = first, of_segments[first]
  else
    lost[#lost + 1] = first
  end
  of_segments[first] = nil
end
-- What is left are no segments: of scripts that died half-way.
for first in pairs(of_segments) do lost[#lost + 1] = first end
for i, first in ipairs(lost) do
  if i > REMOVED then return {'more'} end
  remove(first)
end
local topic_id = (state.topic_id or '') == '' and arg.topic_id or state.topic_id
call('HSET', meta, 'token', arg.token, 'owner', arg.owner, 'topic_id', topic_id, 'partitions', arg.partitions, 'change', 0)
if not is_known then call('HSET', meta, 'clock', state.clock, 'log', '', 'fence', state.fence) end
return {outcome, text(fence), state.clock, topic_id, state.log or '', found}
