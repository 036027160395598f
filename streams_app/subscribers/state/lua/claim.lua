#!lua flags=allow-oom
-- Makes a fresh token the owner of what is kept of a subscriber's partition; creates it where there is none.
--
-- KEYS   of the shard, see keys.py
-- token  text: of the claimant, random
-- begin  text: the fence the state begins with where there is none; "" = do not create
-- again  boolean: the claimant had claimed before: what another one has claimed since is not taken from it
--
-- Returns {"ok", fence, number of begins, note, offset, entry, offset, entry, …} or {"none"} where there is no state and none is created; or
--         {"refused", "token"}.
-- Cost    O(open).
-- include fenced.lua

read_marks('number', 'note')
if arg.again and state.token and state.token ~= arg.token then return {'refused', 'token'} end
if not (state.fence and state.number) then
  if arg.begin == '' then return {'none'} end
  -- Without its marks nobody knows what the rest is worth: what Kafka has committed says it better.
  call('DEL', KEYS[2])
  state.fence, state.number, state.note = arg.begin, '0', ''
end
call('HSET', meta, 'token', arg.token, 'fence', state.fence, 'number', state.number, 'note', state.note or '', 'told', 0)
local reply = {'ok', state.fence, state.number, state.note or ''}
for _, text in ipairs(call('HGETALL', KEYS[2])) do reply[#reply + 1] = text end
return reply
