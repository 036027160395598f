#!lua flags=allow-oom
-- Makes a new token the owner of the state of a subscriber's partition, which is created if there is none.
--
-- KEYS   of the shard, see keys.py
-- token  text: of the claimant, random
-- begin  text: fence of a new state; "" = do not create one
-- retried boolean: the claimant has claimed before, so a state with another token belongs to a later owner and is not taken over
--
-- Returns {"ok", fence, number, note, then two items for each event that is begun or waits: offset, entry}, {"none"} if there is no
--         state and none is created, or {"refused", "token"}.
-- Cost    O(open).
-- include fenced.lua

read_marks('number', 'note')
if arg.retried and state.token and state.token ~= arg.token then return {'refused', 'token'} end
if not (state.fence and state.number) then
  if arg.begin == '' then return {'none'} end
  -- Without its fence, the rest of the state is not reliable; the commit in Kafka replaces it.
  call('DEL', KEYS[2])
  state.fence, state.number, state.note = arg.begin, '0', ''
end
call('HSET', meta, 'token', arg.token, 'fence', state.fence, 'number', state.number, 'note', state.note or '', 'told', 0)
local reply = {'ok', state.fence, state.number, state.note or ''}
for _, text in ipairs(call('HGETALL', KEYS[2])) do reply[#reply + 1] = text end
return reply
