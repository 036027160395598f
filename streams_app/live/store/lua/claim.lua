#!lua flags=allow-oom
-- Makes a fresh token the owner of a view's partition; drops a state that is of another definition or topic, and creates one.
--
-- KEYS        of the shard, see keys.py
-- token       text: of the claimant, random
-- definition  text: what the state means
-- topic_id    text: of the source as the broker knows it; "" = unknown, leaves what is stored
-- partitions  number: how many the source has, for whoever reads all of them
-- drop        boolean: the state is of another log, or unwanted
-- begin       text: fence of the state that is created; "" = create none
-- clock       text: clock of the state that is created, ms
-- reading     text: end of the log up to which the created state is read before it is shown; "" = it is shown at once
-- whole_ms    text: from then on nothing is missing that retention has removed; "0" = nothing is
--
-- The marks go first: without them nobody takes what is left of the rest for a state.
--
-- Returns {"ok" | "new", fence, seq, clock, reading, whole_ms, log}; {"more"} where pages are left to be dropped: call it again; {"none"}
--         where there is no state and none is created.
-- Cost    O(1); where a state is dropped up to 500 pages a call.
-- include view.lua

local DROPPED = 500
read_marks('definition', 'topic_id', 'reading', 'whole_ms', 'log')
local is_same_topic = arg.topic_id == '' or (state.topic_id or '') == '' or state.topic_id == arg.topic_id
if state.fence and state.seq and state.clock and state.definition == arg.definition and is_same_topic and not arg.drop then
  call('HSET', meta, 'token', arg.token, 'partitions', arg.partitions)
  if arg.topic_id ~= '' then call('HSET', meta, 'topic_id', arg.topic_id) end
  return {'ok', state.fence, state.seq, state.clock, state.reading or '', state.whole_ms or '0', state.log or ''}
end
call('DEL', meta)
local found = call('HSCAN', pages, '0', 'COUNT', DROPPED)[2]
for i = 1, math.min(#found, 2 * DROPPED), 2 do
  local page = found[i]
  call('UNLINK', items_of .. page, data_of .. page)
  call('ZREM', due, page)
  call('HDEL', pages, page)
end
if call('EXISTS', pages) == 1 then return {'more'} end
call('UNLINK', due)
if arg.begin == '' then return {'none'} end
call('HSET', meta, 'token', arg.token, 'definition', arg.definition, 'topic_id', arg.topic_id, 'partitions', arg.partitions,
     'seq', '0', 'clock', arg.clock, 'reading', arg.reading, 'whole_ms', arg.whole_ms, 'fence', arg.begin)
return {'new', arg.begin, '0', arg.clock, arg.reading, arg.whole_ms, ''}
