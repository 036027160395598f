#!lua flags=allow-oom
-- Replaces packed groups by a hash for each, so that a worker of an older version can read them. The owner calls it when it releases the
-- shard, because the next owner may have another version, and when it finds an older worker.
--
-- KEYS   of the shard, see shared/shard.lua
-- token  text
-- limit  maximum number of groups
-- most   maximum number of packed groups: if there are more, the script changes nothing; missing = any number
--
-- Returns {"ok", number of packed groups that are left to unpack} or {"refused", "no-state" | "token"}.
-- Cost    O(limit): about 12 us a group. Repeating it changes nothing.
-- include shard.lua
-- include group.lua

local refused = refusal()
if refused then return refused end
if state.format ~= PACKED then call('UNLINK', open, timers) end -- of an older state, which was lost
if arg.most and call('HLEN', open) > arg.most then return {'ok', 0} end
local found, groups = call('HRANDFIELD', open, arg.limit, 'WITHVALUES'), {}
for i = 1, #found, 2 do
  local group, key = found[i], prefix .. found[i]
  local g, packed_names = parts_of(found[i + 1])
  local opened_at = call('ZSCORE', first, group)
  if opened_at and tonumber(opened_at) == g.first then
    local fields = {INFO, packed_of(g, state.epoch)}
    for name, value in pairs(unpacked(packed_names)) do fields[#fields + 1], fields[#fields + 2] = name, value end
    call('DEL', key) -- it may have fields of an older state
    call('HSET', key, unpack(fields))
    call('ZADD', due, g.silent - g.shorter, group)
  end
  groups[#groups + 1] = group
end
in_pages('HDEL', open, groups)
drop_format()
return {'ok', call('HLEN', open)}
