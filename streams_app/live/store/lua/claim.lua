#!lua flags=allow-oom
-- Makes a new token the owner of a view's partition. Drops a state of another definition or topic; creates a state if there is none.
--
-- KEYS        of the shard, see keys.py
-- token       text: random token of the claim
-- definition  text: definition of the view
-- topic_id    text: id of the source; "" = unknown: the stored id stays
-- partitions  number: number of partitions of the source, for readers of all shards
-- drop        boolean: whether to drop the stored state in any case
-- begin       text: fence of the state that is created; "" = create none
-- clock       text: clock of the state that is created, ms
-- reading     text: offset up to which the log is read before the created state is shown; "" = it is shown at once
-- whole_ms    text: time until which items may be missing, because retention may have removed events before they were read, ms; "0" =
--             nothing is missing
--
-- To drop a state, the key meta is deleted first: without meta, the remaining keys do not count as a state.
--
-- Returns {"ok" | "new", fence, seq, clock, reading, whole_ms, log}; {"more"} if pages remain to be dropped: call it again; {"none"}
--         if there is no state and none is created.
-- Cost    O(1); if a state is dropped, up to 500 pages a call.
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
local stored = call('HSCAN', pages, '0', 'COUNT', DROPPED)[2]
for i = 1, math.min(#stored, 2 * DROPPED), 2 do
  local page = stored[i]
  call('UNLINK', items_of .. page, data_of .. page)
  call('ZREM', due, page)
  call('HDEL', pages, page)
end
if call('EXISTS', pages) == 1 then return {'more'} end
call('UNLINK', due, dropped)
if arg.begin == '' then return {'none'} end
call('HSET', meta, 'token', arg.token, 'definition', arg.definition, 'topic_id', arg.topic_id, 'partitions', arg.partitions,
     'seq', '0', 'clock', arg.clock, 'reading', arg.reading, 'whole_ms', arg.whole_ms, 'fence', arg.begin)
return {'new', arg.begin, '0', arg.clock, arg.reading, arg.whole_ms, ''}
