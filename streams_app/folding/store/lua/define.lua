#!lua flags=allow-oom
-- Stores the definition of the fold once nothing stored under the former one is left. A range that is under way is folded again from its
-- begin: what the former definition made of it has left, and the groups of the two are not the same.
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
drop_range() -- before: under the new definition nobody may go on with it
call('HSET', meta, 'definition', arg.definition)
return {'ok'}
