#!lua flags=allow-oom
-- Removes what a shard stores of some groups, for `streams-app forget`: open groups, requests to flush or drop them, answers to these
-- requests, and the given sealed records. If a group or a record is removed, the caller becomes the owner: the worker then claims the
-- shard again, and drops what it has in memory.
--
-- KEYS     of the shard, see shared/shard.lua
-- token    text: of the caller, random
-- groups   array: the groups
-- below    number: an open group stays if its first offset is not below it
-- records  array: entries of the outbox, exactly as stored
--
-- Returns {"ok", open groups removed, their events, requests and answers removed, records removed}.
-- Cost    O(groups + records): about 10 us each. Repeating it changes nothing.
-- include shard.lua

local found, counts = {}, {0, 0, 0, 0}
for _, group in ipairs(arg.groups) do
  local packed = call('HGET', prefix .. group, '\255')
  -- The numbers of a group, in the order of shared/group.lua: epoch, first offset, ..., number of events at 6.
  local numbers = packed and unpacked(packed)
  local is_new = numbers and numbers[1] == state.epoch and numbers[2] >= arg.below
  if not is_new and (call('EXISTS', prefix .. group, ids_prefix .. group) > 0 or call('ZSCORE', due, group) or call('ZSCORE', first, group)) then
    found[#found + 1] = group
    counts[1], counts[2] = counts[1] + 1, counts[2] + (numbers and numbers[6] or 0)
  end
end
-- The token comes first: if the script fails later, the owner no longer relies on what it has in memory.
if state.fence and (found[1] or arg.records[1]) then call('HSET', meta, 'token', arg.token) end
for _, group in ipairs(found) do
  call('UNLINK', prefix .. group, ids_prefix .. group)
  call('ZREM', due, group)
  call('ZREM', first, group)
end
for _, group in ipairs(arg.groups) do
  counts[3] = counts[3] + call('SREM', flush, group) + call('HDEL', drop, group) + call('HDEL', dropped, group)
end
for _, record in ipairs(arg.records) do counts[4] = counts[4] + call('ZREM', outbox, record) end
return {'ok', counts[1], string.format('%.0f', counts[2]), counts[3], counts[4]}
