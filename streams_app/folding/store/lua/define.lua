#!lua flags=allow-oom
-- Stores a new definition of the fold, if Redis stores no open group and no sealed record of the former definition. A range in progress is
-- dropped, and folded again from its beginning: its groups under the former definition were emitted, and the new definition may group
-- events differently.
--
-- KEYS        of the shard, see shared/shard.lua
-- token       text
-- definition  text
--
-- Returns {"ok"} or {"refused", "no-state" | "token" | "not-drained"}.
-- Cost    O(1).
-- include shard.lua

local refused = refusal()
if refused then return refused end
if call('ZCARD', first) + call('ZCARD', outbox) > 0 then return {'refused', 'not-drained'} end
call('UNLINK', open, timers) -- no group is open: what a script that failed half-way has left
drop_range() -- first: if the script fails in between, no owner may continue the range under the new definition
call('HSET', meta, 'definition', arg.definition)
return {'ok'}
