#!lua flags=allow-oom
-- Makes a new token the owner of a journal's partition, and removes the leftovers of scripts and packings that were interrupted.
--
-- KEYS           of the shard, see keys.py
-- token          text: of the claimant, random
-- owner          text: name of the worker, shown to operators
-- topic_id       text: id of the source at the broker; "" = unknown. Stored if the state has none; a different one stays and is returned
-- partitions     number of partitions of the source, for readers of the whole journal
-- begin          text: fence of a new state; "" = do not create one
-- clock          text: clock of a new state, ms
-- fence_at_most  text: offset from which on the log differs: the segment with this offset and all later ones are removed; "" = it does
--                not differ
--
-- Returns {"ok" | "new", fence, clock, topic_id, log, {first offset, description, ...} of all segments in their order}; {"more"} if further
--         segments must be removed, so that the call must be repeated; {"none"} if there is no state and none is created.
-- Cost    O(segments): about 3 us each, and 10 us for each that is removed, at most 1 000 per call.
-- include segments.lua

read_marks('clock', 'topic_id', 'log')
local REMOVED = 1000
local outcome, firsts, is_whole = 'ok', call('ZRANGE', segments, 0, -1), true
local fields, of_segments = call('HGETALL', about), {}
for i = 1, #fields, 2 do of_segments[fields[i]] = fields[i + 1] end
-- The entry in "about" is written before the one in "segments", and removed after it. If it is missing, Redis has lost it, and the log is
-- read again.
for _, first in ipairs(firsts) do is_whole = is_whole and of_segments[first] end
-- A script that failed half-way may leave one segment in "about" that is not in "segments": one above the fence, or the oldest one, which it
-- removed. If "segments" is empty and "about" has segments up to the fence, Redis has lost "segments". The log is then read again, also if
-- that segment is only the rest of a failed removal.
if not firsts[1] then
  for first in pairs(of_segments) do is_whole = is_whole and (tonumber(first) or math.huge) > tonumber(state.fence or -1) end
end
if not (state.fence and state.clock and is_whole) then
  if arg.begin == '' then return {'none'} end
  outcome, state = 'new', {fence = arg.begin, clock = arg.clock, topic_id = arg.topic_id, log = ''}
  call('HDEL', meta, 'fence')
end
local fence, is_kept = tonumber(state.fence), outcome == 'ok'
if is_kept and arg.fence_at_most ~= '' and tonumber(arg.fence_at_most) <= fence then
  local differing = tonumber(arg.fence_at_most)
  fence = tonumber(first_up_to(differing) or differing) - 1
  -- The fence comes first, so that events above it count as not appended before their segments are removed.
  call('HSET', meta, 'fence', text(fence))
end
remove_staged()
of_segments.staged = nil
local kept, removed = {}, {}
for _, first in ipairs(firsts) do
  if is_kept and tonumber(first) <= fence then
    kept[#kept + 1], kept[#kept + 2] = first, of_segments[first]
  else
    removed[#removed + 1] = first
  end
  of_segments[first] = nil
end
-- The remaining entries are no segments, but leftovers of scripts that failed half-way.
for first in pairs(of_segments) do removed[#removed + 1] = first end
for i, first in ipairs(removed) do
  if i > REMOVED then return {'more'} end
  remove(first)
end
local topic_id = (state.topic_id or '') == '' and arg.topic_id or state.topic_id
call('HSET', meta, 'token', arg.token, 'owner', arg.owner, 'topic_id', topic_id, 'partitions', arg.partitions, 'change', 0)
if not is_kept then call('HSET', meta, 'clock', state.clock, 'log', '', 'fence', state.fence) end
return {outcome, text(fence), state.clock, topic_id, state.log or '', kept}
