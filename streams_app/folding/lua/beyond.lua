-- Undoes what was staged by an attempt to fold that was given up: groups opened and records put into the outbox beyond the fence,
-- runs added to open groups. Nobody has seen any of it, and its events are read again. Put into other scripts in the place of a line
-- that names it.
-- Cost    O(log n), and about 3 us for each that is dropped, 3 us for each group that had gone on and 0.5 us for each of its names.

-- Of the groups that went on, by member: packed numbers before, and name, value before (false = it had none), ...
local undo = prefix .. '\255'

local function drop_beyond(fence)
  local beyond, most = '(' .. fence, 1000
  local dropped = redis.call('ZREMRANGEBYSCORE', outbox, beyond, '+inf')
  repeat
    local groups, keys = redis.call('ZRANGEBYSCORE', first, beyond, '+inf', 'LIMIT', 0, most), {}
    for i = 1, #groups do keys[i] = prefix .. groups[i] end
    if #groups > 0 then
      redis.call('UNLINK', unpack(keys))
      redis.call('ZREM', due, unpack(groups))
      dropped = dropped + redis.call('ZREM', first, unpack(groups))
    end
  until #groups < most
  local went_on = redis.call('EXISTS', undo) == 1 and redis.call('HGETALL', undo) or {}
  for u = 1, #went_on, 2 do
    local key, before = prefix .. went_on[u], cmsgpack.unpack(went_on[u + 1])
    local fields, without = {'\255', before[1]}, {}
    for n = 2, #before, 2 do
      if before[n + 1] then
        fields[#fields + 1], fields[#fields + 2] = before[n], before[n + 1]
      else
        without[#without + 1] = before[n]
      end
    end
    if redis.call('HEXISTS', key, '\255') == 1 then redis.call('HSET', key, unpack(fields)) end
    if #without > 0 then redis.call('HDEL', key, unpack(without)) end
  end
  if #went_on > 0 then redis.call('UNLINK', undo) end
  -- A portion of that attempt that comes late must find nothing to go on with.
  if dropped + #went_on > 0 then redis.call('HDEL', meta, 'attempt') end
end
