#!lua flags=allow-oom
-- Moves due groups into the outbox, each with everything that its record is made of.
-- The scores in "due" are timers of hashes, those of packed groups are in "timers". An event of an open group does not update its timer;
-- if a timer fires too early, it is set anew here.
-- While a range is in progress, the stored clock is used, because the events of the range are scored by it. A group with events above the
-- fence stays open, unless the range has passed it: then the rest of the range does not touch it.
-- Before that, groups that an operator has requested to drop are removed without a record.
--
-- KEYS           of the shard, see shared/shard.lua
-- token          text
-- fence          text: the expected fence
-- clock          partition clock, ms; never moves back
-- is_redis_full  Redis is full: groups are due by "clock" also while a range is in progress, or the range might never end; the clock is
--                not stored then
-- quiet_ms       quiet period; missing = quiet groups stay open (a backlog is being merged)
-- hold_ms        max hold
-- everything     seal every open group, due or not, with the reason "flush"; also those above the fence
-- dedupe         whether groups have ids, see fold.lua
-- limit          maximum number of sealed groups and early timers together
-- partitions     partition count of the source, for the version of the record
-- singly         whether each record becomes an entry of its own, because workers of an older version may claim the shard
--
-- Returns {"ok", clock, "1" if more is due, open groups, entries of the outbox, oldest score, oldest opened, sealed records in a row,
--         {group, first offset, last offset, events, request} of each dropped group in a row, lowest first offset of the records} or
--         {"refused", "no-state" | "token" | "fence"}.
-- Cost    O(limit log n + names sealed), about 10 us a group or timer; some 10 ms if it ends at 1 MB of kept values.
-- include shard.lua
-- include group.lua
-- include records.lua
-- include timers.lua
-- include closing.lua
-- include text.lua
-- Approximate limit on the bytes of records that one script packs and returns.
local MAX_BYTES = 1000000
local IN_PAGE = 200
local DROPPED_SECONDS = 604800

local refused = refusal()
if refused then return refused end
local fence, limit, everything = tonumber(state.fence), arg.limit, arg.everything
local clock = tonumber(state.clock or '0')
local due_clock = clock
if arg.is_redis_full then
  -- This clock is not stored: this owner and the next one score the range in progress by the stored clock.
  due_clock = math.max(clock, arg.clock)
elseif not state.to then
  clock = math.max(clock, arg.clock)
  due_clock = clock
end

-- ---- compute: reads only

local sealed, lowest, gone, gone_keys, gone_packed, answered, later = {}, math.huge, {}, {}, {}, {}, {}
local seen, stay, taken, bytes, more, is_leaving = {}, {}, 0, 0, false, false
local fired, to_timers, no_timer, early = {}, {}, {}, 0

-- Plans to remove the keys of a group, which are those of an older state if it has no numbers.
local function remove(group, g, packed)
  gone[#gone + 1] = group
  if packed then gone_packed[#gone_packed + 1] = group end
  gone_keys[#gone_keys + 1] = prefix .. group -- also of a packed group: a script that failed half-way may have left a hash with less of it
  if arg.dedupe or not g or g.ids > 0 then gone_keys[#gone_keys + 1] = ids_prefix .. group end
  answered[#answered + 1] = group
end

-- Whether the rest of the range in progress may add events to the group, or a script that failed half-way has added some.
local function is_held(group, g)
  return g.last > fence and not (state.to and g.last <= tonumber(state.to) and not is_after(group, state.cursor))
end

-- The fields of packed groups in "open", in the order of the given groups; false = the group is not packed.
local function packed_among(groups)
  return state.format == PACKED and groups[1] and call('HMGET', open, unpack(groups)) or {}
end

-- The numbers of a group that is a hash, nil if it belongs to an older state, and its names: {name, value, ...}.
local function read_all(key)
  local content, at = call('HGETALL', key), 1
  while content[at] and content[at] ~= INFO do at = at + 2 end
  local packed, last = content[at + 1], #content
  content[at], content[at + 1] = content[last - 1], content[last]
  content[last - 1], content[last] = nil, nil
  if not packed then return nil, content end
  local g, epoch = numbers_of(packed)
  return epoch == state.epoch and g or nil, content
end

-- Plans to seal a group, or to set its timer anew if the group is not due yet. Returns false if this script has done enough work.
local function take(group, packed, why, is_timer)
  if seen[group] then return true end
  if taken + early >= limit or bytes > MAX_BYTES then
    more = true
    return false
  end
  seen[group] = true
  local key, g, names = prefix .. group, nil, nil
  if packed then
    g, names = parts_of(packed)
  elseif is_leaving then -- one call costs less than two: if the previous group was due, this one is likely to be due, too
    g, names = read_all(key)
  else
    g = hash_group(group)
  end
  is_leaving = not (g and is_timer and g.silent - g.shorter + quiet_ms >= due_clock)
  if not is_leaving then
    early = early + 1
    if packed then
      to_timers[#to_timers + 1] = {g.silent - g.shorter, g.first}
    else
      later[#later + 1], later[#later + 2] = g.silent - g.shorter, group
    end
    bytes = bytes + (packed and #packed or 20 * #(names or {}))
    return true
  end
  taken = taken + 1
  if not g then
    remove(group, nil, packed) -- its events are read again from the low watermark in Kafka
  elseif not everything and is_held(group, g) then
    stay[group] = true
  elseif g.events == 0 then -- no event has followed its early record
    remove(group, g, packed)
  else
    if not names then g, names = read_all(key) end
    local reason, due_ms = closed_by(g, g.silent)
    if why == 'flush' then reason, due_ms = 'flush', clock end
    local record = record_of(group, g, reason, due_ms, names)
    bytes = bytes + #record
    sealed[#sealed + 1] = record
    lowest = math.min(lowest, g.first)
    remove(group, g, packed)
  end
  return true
end

-- Visits groups page by page, until there are no more or the visitor returns false. The first page has one group: it is often the last.
local function each_of(page_at, visit)
  local at, size, most = 0, 1, 0
  repeat
    most = math.min(size, limit - taken + 1)
    local page = page_at(at, most)
    local packed = packed_among(page)
    for i = 1, #page do
      if not visit(page[i], packed[i]) then return end
    end
    at, size = at + most, IN_PAGE
  until #page < most
end

-- Calls a function with each packed group of some timers, its field of "open", and its timer.
local function each_packed(entries, visit)
  local groups, owners = {}, {}
  for _, entry in ipairs(entries) do
    local offset = string.format('%.0f', entry[2])
    for _, group in ipairs(call('ZRANGEBYSCORE', first, offset, offset)) do
      groups[#groups + 1], owners[#owners + 1] = group, entry
    end
  end
  for i, packed in ipairs(packed_among(groups)) do
    if packed then visit(groups[i], packed, owners[i]) end
  end
end

-- Visits packed groups whose timers have passed. Those whose time has not come, or that this script cannot visit, stay in "timers".
local function each_timer(till)
  local at, read, batch = 0, 0, nil
  repeat
    if more or read >= 10 * limit then
      more = true
      return
    end
    batch = call('ZRANGEBYSCORE', timers, '-inf', till, 'LIMIT', at, 1)
    local entries, passed = batch[1] and entries_of(batch[1]) or {}, {}
    for i, entry in ipairs(entries) do
      local list = entry[1] + quiet_ms < due_clock and passed or to_timers
      list[#list + 1] = entry
    end
    each_packed(passed, function(group, packed, entry)
      if not take(group, packed, 'due', true) or stay[group] then to_timers[#to_timers + 1] = entry end
    end)
    fired[#fired + 1] = batch[1]
    at, read = at + 1, read + #entries
  until not batch[1]
end

-- A request to drop a group names the first offset of the fold that the operator has seen. A later fold of the group is kept.
local requests = call('HRANDFIELD', drop, limit, 'WITHVALUES')
local drops, answers, done = {}, {}, {}
for i = 1, #requests, 2 do
  local group, request = requests[i], requests[i + 1]
  local packed = packed_among({group})[1]
  local g = group_of(group, packed)
  local is_seen = g and g.first == tonumber(request:match('^%d+'))
  if not is_seen or everything or not is_held(group, g) then done[#done + 1] = group end
  if is_seen and done[#done] == group then
    local numbers = {string.format('%.0f', g.first), string.format('%.0f', g.last), string.format('%.0f', g.events)}
    for _, value in ipairs({group, numbers[1], numbers[2], numbers[3], request}) do drops[#drops + 1] = value end
    local counts = numbers[1] .. ' ' .. numbers[3] .. ' ' .. numbers[2] .. ' ' .. string.format('%.0f', clock)
    answers[#answers + 1], answers[#answers + 2] = group, counts .. ' ' .. request
    remove(group, g, packed)
    seen[group], taken = true, taken + 1
  end
end

local wanted = call('SRANDMEMBER', flush, limit)
local is_flush = everything
for i = 1, #wanted do
  if wanted[i] == '*' then is_flush = true end
end
if is_flush then
  each_of(function(at, most) return call('ZRANGE', first, at, at + most - 1) end,
          function(group, packed) return take(group, packed, 'flush') end)
else
  for i = 1, #wanted do take(wanted[i], packed_among({wanted[i]})[1], 'flush') end
  -- First offsets have the order in which groups were opened, because the clock never goes back.
  each_of(function(at, most) return call('ZRANGE', first, at, at + most - 1) end,
          function(group, packed)
            local g = group_of(group, packed)
            return not (g and g.opened + hold_ms > due_clock) and take(group, packed, 'due')
          end)
  if quiet_ms then
    local till = '(' .. string.format('%.0f', due_clock - quiet_ms)
    each_of(function(at, most) return call('ZRANGEBYSCORE', due, '-inf', till, 'LIMIT', at, most) end,
            function(group, packed)
              if packed then no_timer[#no_timer + 1] = group end -- a script that failed half-way has left its timer
              return packed or take(group, nil, 'due', true)
            end)
    each_timer(till)
  end
end

-- ---- write

-- Written first: if the script fails later, its repetition does not find the group and could not write this answer.
in_pages('HSET', dropped, answers)
if #answers > 0 then call('EXPIRE', dropped, DROPPED_SECONDS) end
local records = table.concat(sealed)
add_block(lowest, records, #sealed)
unlink(gone_keys)
in_pages('HDEL', open, gone_packed)
in_pages('ZREM', due, gone)
in_pages('ZADD', due, later)
in_pages('ZREM', due, no_timer)
in_pages('ZREM', first, gone)
replace_batches(fired, to_timers) -- last: a packed group without a timer would stay open until max hold
in_pages('HDEL', drop, done)
if is_flush and not more and not next(stay) then
  call('DEL', flush)
elseif #wanted > 0 then
  in_pages('SREM', flush, answered)
end
call('HSET', meta, 'clock', string.format('%.0f', clock))
if gone_packed[1] then drop_format() end

-- The lowest timer of packed groups; sets the timers of its batch anew until it agrees with its group.
local function lowest_timer(steps)
  local lowest = math.huge
  for _ = 1, math.max(1, steps) do
    local batch = call('ZRANGE', timers, 0, 0, 'WITHSCORES')
    if not batch[1] then return math.huge end
    lowest = tonumber(batch[2])
    local entries, fresh, agrees = entries_of(batch[1]), {}, false
    each_packed({entries[1]}, function(_, packed)
      local g = parts_of(packed)
      agrees = agrees or g.silent - g.shorter <= lowest
    end)
    if agrees then return lowest end
    each_packed(entries, function(_, packed)
      local g = parts_of(packed)
      fresh[#fresh + 1] = {g.silent - g.shorter, g.first}
    end)
    replace_batches({batch[1]}, fresh)
  end
  return lowest
end

-- Sets early timers anew until the lowest timer agrees with its group, which is then the group that is due first. If the script has done
-- enough work before, the result is approximate.
local oldest, opened = math.huge, ''
local steps = math.max(1, limit - taken - early)
for _ = 1, steps do
  local timer = call('ZRANGE', due, 0, 0, 'WITHSCORES')
  local g = timer[1] and hash_group(timer[1])
  oldest = g and g.silent - g.shorter or tonumber(timer[2] or math.huge)
  if not g or oldest <= tonumber(timer[2]) then break end
  call('ZADD', due, string.format('%.0f', oldest), timer[1])
end
oldest = math.min(oldest, lowest_timer(steps / BATCH))
oldest = oldest < math.huge and string.format('%.0f', oldest) or ''
local head = call('ZRANGE', first, 0, 0)
local g = head[1] and group_of(head[1], packed_among(head)[1])
if g then opened = string.format('%.0f', g.opened) end
return {'ok', string.format('%.0f', clock), more and '1' or '0', call('ZCARD', first),
        call('ZCARD', outbox), oldest, opened, records, drops, string.format('%.0f', #sealed > 0 and lowest or 0)}
