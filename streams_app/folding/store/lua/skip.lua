#!lua flags=allow-oom
-- Moves the fence over offsets that the log no longer has (retention overtook the worker). A range that ends there or before is over; of
-- one that reaches further the rest is folded, from its cursor on.
--
-- KEYS   of the shard, see shared/shard.lua
-- token  text
-- fence  text: offset expected
-- to     text: offset of the new fence
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
