-- Drops what was staged by an attempt to fold that was given up: groups opened and records put into the outbox beyond the fence.
-- Nobody has seen any of it, and its events are read again. Put into other scripts in the place of a line that names it.
-- Cost    O(log n), and about 3 us for each that is dropped.
local function drop_beyond(fence)
  local beyond, most = '(' .. fence, 1000
  redis.call('ZREMRANGEBYSCORE', outbox, beyond, '+inf')
  repeat
    local groups, keys = redis.call('ZRANGEBYSCORE', first, beyond, '+inf', 'LIMIT', 0, most), {}
    for i = 1, #groups do keys[i] = prefix .. groups[i] end
    if #groups > 0 then
      redis.call('UNLINK', unpack(keys))
      redis.call('ZREM', due, unpack(groups))
      redis.call('ZREM', first, unpack(groups))
    end
  until #groups < most
end
