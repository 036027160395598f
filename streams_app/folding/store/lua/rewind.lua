#!lua flags=allow-oom
-- Moves the fence back over offsets that the broker has lost: its log went back, and what follows is to be folded.
--
-- KEYS   of the shard, see shared/shard.lua
-- token  text
-- fence  text: offset expected
-- to     text: offset of the new fence
-- log    text: fingerprints of the records up to there
-- lost   text: how many offsets the broker has lost so far, these included; ids and versions of further records count on from there
--
-- Returns {"ok"} or {"refused", "no-state" | "token" | "fence" | "open-groups"}.
-- Cost    O(1). No group may be open and the outbox is empty: events at or below the last offset of a group would be skipped, and what is
--         sealed has the id and the version of the former log.
-- include shard.lua

read_marks('lost')
if state.fence and state.token == arg.token and state.fence == arg.to and state.lost == arg.lost then return {'ok'} end -- a reply was lost
local refused = refusal()
if refused then return refused end
if call('ZCARD', first) > 0 or call('ZCARD', outbox) > 0 then return {'refused', 'open-groups'} end
drop_range()
call('HSET', meta, 'log', arg.log, 'lost', arg.lost, 'fence', arg.to)
return {'ok'}
