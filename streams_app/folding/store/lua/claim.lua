#!lua flags=allow-oom
-- Makes a new token the owner of a shard, and creates the state if there is none.
--
-- KEYS        of the shard, see shared/shard.lua
-- token       text: of the claimant, random
-- begin       text: fence of a new state if there is none; "" = create no state
-- epoch       four random bytes, which distinguish the groups of this state from those of an older state
-- definition  text: the definition of the fold by which its state is stored
-- owner       text by which operators recognize the claimant
-- topics      text: topics of records and dead letters; used to emit the open groups if the fold is no longer declared
-- topic_id    text: id of the source at the broker, compared by the next claim; "" = keep the stored one
--
-- Returns {"ok" | "new", fence, clock, record_clock, late, epoch, definition, open groups, to, cursor, cap, arrived,
--         digest, quiet, log, lost, learned}. "to" to "quiet" describe the range in progress; they are "" if there is none. {"none"} if
--         there is no state and none is created.
-- Cost    O(1); O(outbox) if the remains of a partly lost state are dropped.
-- include shard.lua

if state.fence and state.epoch then
  call('HSET', meta, 'token', arg.token, 'reads_blocks', arg.token, 'reads_packed', arg.token, 'owner', arg.owner, 'topics', arg.topics)
  if arg.topic_id ~= '' then call('HSET', meta, 'topic_id', arg.topic_id) end
  read_marks('record_clock', 'late', 'definition', 'cap', 'arrived', 'digest', 'quiet', 'log', 'lost', 'learned')
  -- If a script failed after it had written the fence, the fields of a completely folded range remain.
  local is_whole = state.to and state.cursor and state.cap and state.arrived and tonumber(state.to) > tonumber(state.fence)
  if not is_whole then drop_range() end
  drop_format()
  return {'ok', state.fence, state.clock or '0', state.record_clock or '0', state.late or '0', state.epoch, state.definition or '',
          call('ZCARD', first), is_whole and state.to or '', is_whole and state.cursor or '',
          is_whole and state.cap or '', is_whole and state.arrived or '', is_whole and state.digest or '',
          is_whole and state.quiet or '', state.log or '', offsets_lost(), state.learned or ''}
end
if arg.begin == '' then return {'none'} end
-- Without its fence, the rest of the state is not reliable, but the low watermark in Kafka is. Begin there with an empty state.
call('UNLINK', due, first, outbox, open, timers)
call('HDEL', meta, 'log', 'lost', 'learned', 'format')
drop_range()
call('HSET', meta, 'token', arg.token, 'reads_blocks', arg.token, 'reads_packed', arg.token, 'owner', arg.owner, 'topics', arg.topics,
     'clock', '0', 'record_clock', '0', 'late', '0', 'epoch', arg.epoch, 'definition', arg.definition, 'topic_id', arg.topic_id, 'fence', arg.begin)
return {'new', arg.begin, '0', '0', '0', arg.epoch, arg.definition, 0, '', '', '', '', '', '', '', '0', ''}
