-- Undoes what was staged by an attempt to fold that was given up: groups opened and records put into the outbox beyond the fence,
-- runs added to open groups, open groups sealed together with a session. Nobody has seen any of it, and its events are read again. Put
-- into other scripts in the place of a line that names it.
-- Cost    O(log n), and about 1 us for each record that is dropped, 3 us for each group, 8 us for each that had gone on or been sealed,
--         0.5 us for each of its names and 10 us for each kB of it; at most some 5 ms.

-- Of the groups that went on or were sealed, by member: two or three values packed one after the other. First offset of the session
-- that ended with it, all its fields, its timer; or false and {packed numbers before, name, value before (false = it had none), ...}.
local undo = prefix .. '\255'

-- Returns false while there is more to undo: the script says "again" then, and is called again.
local function drop_beyond(fence)
  local UNDONE, PAGE_OF_UNDO, MOST_UNDO = 1000, 20, 4000
  local beyond = '(' .. fence
  local records = redis.call('ZCOUNT', outbox, beyond, '+inf')
  if records > 0 then redis.call('ZREMRANGEBYRANK', outbox, -math.min(records, 4 * UNDONE), -1) end
  local groups, keys = redis.call('ZRANGEBYSCORE', first, beyond, '+inf', 'LIMIT', 0, UNDONE), {}
  for g = 1, #groups do keys[g] = prefix .. groups[g] end
  if #groups > 0 then
    redis.call('UNLINK', unpack(keys))
    redis.call('ZREM', due, unpack(groups))
    redis.call('ZREM', first, unpack(groups))
  end
  local is_left = redis.call('EXISTS', undo) == 1
  -- A portion of that attempt that comes late must find nothing to go on with.
  if records + #groups > 0 or is_left then redis.call('HDEL', meta, 'attempt') end
  -- What a group was before comes back once it is open no more.
  if records > 4 * UNDONE or #groups == UNDONE then return false end
  local work = 0
  while is_left and work < MOST_UNDO do
    local page, u = redis.call('HRANDFIELD', undo, PAGE_OF_UNDO, 'WITHVALUES'), 1
    while page[u] and work < MOST_UNDO do
      local group, key = page[u], prefix .. page[u]
      local joint_at, before, timer = cmsgpack.unpack(page[u + 1])
      if joint_at then
        local numbers
        for n = 1, #before, 2 do
          if before[n] == '\255' then numbers = cmsgpack.unpack(before[n + 1]) end
        end
        redis.call('ZREMRANGEBYSCORE', outbox, numbers[2], numbers[2])
        redis.call('DEL', key)
        redis.call('HSET', key, unpack(before))
        redis.call('ZADD', due, timer, group)
        redis.call('ZADD', first, numbers[2], group)
      else
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
      redis.call('HDEL', undo, group)
      work = work + 15 + #before / 2 * (#before < 400 and 1 or 2) + #page[u + 1] / 75
      u = u + 2
    end
    is_left = redis.call('EXISTS', undo) == 1
  end
  return not is_left
end
