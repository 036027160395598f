#!lua flags=allow-oom
-- Makes a fresh token the owner of a shard; creates the state where there is none.
--
-- KEYS        of the shard, see shared/shard.lua
-- token       text: of the claimant, random
-- begin       text: offset of the fence the state begins with where there is none; "" = do not create
-- epoch       four random bytes: tells this state's groups from leftovers of an older one
-- definition  text: what the fold's stored state means
-- owner       text: the claimant, for people
-- topics      text: where records and dead letters go, for whoever drains the fold once it is no longer declared
-- topic_id    text: of the source as the broker knows it, for whoever claims next; "" leaves what is stored
--
-- Returns {"ok" | "new", fence, clock, record_clock, late, epoch, definition, open groups, outbox records, to, cursor, cap, arrived,
--         digest, log, lost}; the five before the last two are of the range under way, "" where there is none. {"none"} where there is no state and none is created.
-- Cost    O(1); O(outbox) where leftovers of a half-lost state are dropped.
-- include shard.lua

if state.fence and state.epoch then
  call('HSET', meta, 'token', arg.token, 'owner', arg.owner, 'topics', arg.topics)
  if arg.topic_id ~= '' then call('HSET', meta, 'topic_id', arg.topic_id) end
  read_marks('record_clock', 'late', 'definition', 'cap', 'arrived', 'digest', 'log', 'lost')
  -- A script that died after it had written the fence leaves the marks of a range that is folded.
  local is_whole = state.to and state.cursor and state.cap and state.arrived and tonumber(state.to) > tonumber(state.fence)
  if not is_whole then drop_range() end
  return {'ok', state.fence, state.clock or '0', state.record_clock or '0', state.late or '0', state.epoch, state.definition or '',
          call('ZCARD', first), call('ZCARD', outbox), is_whole and state.to or '', is_whole and state.cursor or '',
          is_whole and state.cap or '', is_whole and state.arrived or '', is_whole and state.digest or '', state.log or '', state.lost or '0'}
end
if arg.begin == '' then return {'none'} end
-- Without a fence whatever else is left says nothing that Kafka's low mark does not say better: begin clean.
call('DEL', due, first, outbox)
call('HDEL', meta, 'log', 'lost')
drop_range()
call('HSET', meta, 'token', arg.token, 'owner', arg.owner, 'topics', arg.topics, 'clock', '0', 'record_clock', '0', 'late', '0',
     'epoch', arg.epoch, 'definition', arg.definition, 'topic_id', arg.topic_id, 'fence', arg.begin)
return {'new', arg.begin, '0', '0', '0', arg.epoch, arg.definition, 0, 0, '', '', '', '', '', '', '0'}
