#!lua flags=allow-oom
-- Removes what a shard stores of some groups, for `streams-app forget`: open groups, requests to flush or drop them, answers to these
-- requests, the given sealed records, and what was learned from them. If a group or a record is removed, or the worker has learned from
-- groups, the caller becomes the owner: the worker then claims the shard again, and drops what it has in memory.
--
-- KEYS     of the shard, see shared/shard.lua
-- token    text: of the caller, random
-- groups   array: the groups
-- below    number: an open group stays if its first offset is not below it
-- blocks   array: {entry of the outbox exactly as stored, what stays of it, lowest first offset of the rest, number of removed records};
--          nothing stays of an entry if the rest is ""
-- learns   whether the quiet period sets itself, so that the worker may have learned from the groups
-- learned  what was learned of the quiet period, as the caller has read it; "" = nothing
-- rest     the same without the groups; "" = nothing
--
-- Returns {"ok", open groups removed, their events, requests and answers removed, records removed, whether nothing else is stored of the
--         quiet period than "rest": 1 or 0, because another value than "learned" is stored}.
-- Cost    O(groups + blocks): about 10 us each, and the bytes of the blocks. Repeating it changes nothing.
-- include shard.lua
-- include group.lua

local found, counts = {}, {0, 0, 0, 0}
for _, group in ipairs(arg.groups) do
  local g = group_of(group, state.format == PACKED and call('HGET', open, group))
  local is_new = g and g.first >= arg.below
  local is_stored = call('EXISTS', prefix .. group, ids_prefix .. group) > 0 or call('HEXISTS', open, group) == 1
  if not is_new and (is_stored or call('ZSCORE', due, group) or call('ZSCORE', first, group)) then
    found[#found + 1] = group
    counts[1], counts[2] = counts[1] + 1, counts[2] + (g and g.events or 0)
  end
end
-- The token comes first: if the script fails later, the owner no longer relies on what it has in memory.
read_marks('learned')
local is_known = (state.learned or '') == arg.learned
local is_replaced = is_known and arg.learned ~= arg.rest
if state.fence and (found[1] or arg.blocks[1] or arg.learns or is_replaced) then
  call('HSET', meta, 'token', arg.token, 'reads_blocks', arg.token, 'reads_packed', arg.token)
end
for _, group in ipairs(found) do
  call('UNLINK', prefix .. group, ids_prefix .. group)
  call('HDEL', open, group)
  call('ZREM', due, group)
  call('ZREM', first, group)
end
for _, group in ipairs(arg.groups) do
  counts[3] = counts[3] + call('SREM', flush, group) + call('HDEL', drop, group) + call('HDEL', dropped, group)
end
for _, block in ipairs(arg.blocks) do
  local stored, rest, first_offset, removed = unpack(block)
  if call('ZSCORE', outbox, stored) then
    -- The rest comes first: if the script fails in between, other groups have a record twice, but none is lost.
    if rest ~= '' then call('ZADD', outbox, first_offset, rest) end
    call('ZREM', outbox, stored)
    counts[4] = counts[4] + removed
  end
end
drop_format()
if is_replaced and arg.rest == '' then call('HDEL', meta, 'learned') elseif is_replaced then call('HSET', meta, 'learned', arg.rest) end
return {'ok', counts[1], string.format('%.0f', counts[2]), counts[3], counts[4], is_known and 1 or 0}
