#!lua flags=allow-oom
-- Moves the fence back over offsets that the broker has lost by truncating its log, so that the new records at these offsets are folded.
--
-- KEYS   of the shard, see shared/shard.lua
-- token  text
-- fence  text: the expected fence
-- to     text: the new fence
-- log    text: fingerprints of the records up to the new fence
-- lost   text: number of offsets that the broker has lost so far, including these; ids and versions of later records contain it
--
-- Returns {"ok"} or {"refused", "no-state" | "token" | "fence" | "open-groups"}.
-- Cost    O(1). No group may be open, and the outbox must be empty: events at or below the last offset of a group would be skipped, and
--         sealed records have ids and versions of the former log.
-- include shard.lua

read_marks('lost')
if state.fence and state.token == arg.token and state.fence == arg.to and offsets_lost() == arg.lost then return {'ok'} end -- a reply was lost
local refused = refusal()
if refused then return refused end
if call('ZCARD', first) > 0 or call('ZCARD', outbox) > 0 then return {'refused', 'open-groups'} end
drop_range()
call('UNLINK', open, timers) -- no group is open: what a script that failed half-way has left
drop_format() -- it writes "lost", too
call('HSET', meta, 'log', arg.log, 'lost', arg.lost, 'fence', arg.to)
return {'ok'}
