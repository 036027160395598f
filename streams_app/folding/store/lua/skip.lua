#!lua flags=allow-oom
-- Moves the fence over offsets that retention has removed. If the range in progress ends at the new fence or below, it is dropped. If it
-- ends above, the rest of it is folded from its cursor on.
--
-- KEYS   of the shard, see shared/shard.lua
-- token  text
-- fence  text: the expected fence
-- to     text: the new fence
--
-- Returns {"ok"} or {"refused", "no-state" | "token" | "fence" | "open-groups"}.
-- Cost    O(1). No group may be open: a record must not span offsets that are lost.
-- include shard.lua

if state.fence and state.token == arg.token and state.fence == arg.to then return {'ok'} end -- a reply was lost
local refused = refusal()
if refused then return refused end
if call('ZCARD', first) > 0 then return {'refused', 'open-groups'} end
call('HSET', meta, 'fence', arg.to)
if state.to and tonumber(state.to) <= tonumber(arg.to) then drop_range() end
return {'ok'}
