#!lua
-- Folds a range of source offsets into the open groups of a shard and moves the fence to its end.
-- Everything is worked out before anything is written, and the fence is written last: a script that dies half-way
-- leaves groups that a repetition recognises by their last offset.
--
-- KEYS[1]  meta          hash
-- KEYS[2]  due           zset
-- KEYS[3]  first         zset
-- KEYS[4]  outbox        zset
-- KEYS[5]  group_prefix  prefix of the sidecar hashes (same hash tag)
-- ARGV[1]  token         text
-- ARGV[2]  fence         offset expected
-- ARGV[3]  to            offset of the new fence: the end of the range
-- ARGV[4]  clock         partition clock after the range, ms
-- ARGV[5]  record_clock  newest record timestamp so far, ms
-- ARGV[6]  quiet_ms      a gap longer than this closes the group first; "" = only bounds close here
-- ARGV[7]  hold_ms       max hold
-- ARGV[8]  max_events    0 = no bound
-- ARGV[9]  max_changed   names in one group
-- ARGV[10] outbox_limit  records; at or above it nothing is folded
-- ARGV[11] partitions    partition count of the source, for the version of the record
-- ARGV[12] groups        msgpack array of {group, {run, …}}; a run is {first offset, last offset, events, lowest
--                        timestamp, highest timestamp, first score, last score, {"n" .. name, value, …}}
-- ARGV[13] arrived       ms; when the range arrived, "" = it had been waiting. Where gaps close groups, scores are record time:
--                        silence is counted from the arrival, or a producer whose clock is behind would see every group closed at once
--
-- Returns {"ok", clock, {sealed, …}}
--         {"already", clock} when this very range was folded by this owner and the reply was lost
--         {"detail", {index of a group whose runs must be single events, …}}, nothing written
--         {"full"} the outbox must be sent first, nothing written
--         {"refused", "no-state" | "token" | "fence"}
-- Cost    about 8 us a group; the caller sends at most 2 000.
local meta, due, first, outbox, prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, fence, to, clock, record_clock = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local quiet_ms, hold_ms, max_events, max_changed = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local outbox_limit, partitions, arrived = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[13])

local state = redis.call('HMGET', meta, 'token', 'fence', 'clock', 'epoch')
if not state[2] then return {'refused', 'no-state'} end
if state[1] ~= token then return {'refused', 'token'} end
if state[2] == to then return {'already', state[3]} end
if state[2] ~= fence then return {'refused', 'fence'} end
if redis.call('ZCARD', outbox) >= outbox_limit then return {'full'} end
local epoch = state[4]
local groups = cmsgpack.unpack(ARGV[12])

-- ---- work out: reads only
local detail, plans = {}, {}

-- The open fold of a group while it is worked on: numbers, names to be added, and whether what Redis holds is still part of it.
local function load_group(group)
  local key = prefix .. group
  local packed = redis.call('HGET', key, 'i')
  local plan = {group = group, key = key, sealed = {}, stored = false, drop = false, names = {}, known = {}}
  if packed then
    local i = cmsgpack.unpack(packed)
    if i[1] == epoch then
      plan.open = {first = i[2], last = i[2] + i[3], opened = i[4], score = i[4] + i[5], events = i[6],
                   low_ms = i[4] + i[7], high_ms = i[4] + i[7] + i[8], bound = i[9]}
      plan.stored = true
    else
      plan.drop = true
    end
  end
  return plan
end

local function close_group(plan, reason, due_ms)
  local o, names = plan.open, plan.names
  if plan.stored then
    local content, all, at = redis.call('HGETALL', plan.key), {}, {}
    for j = 1, #content, 2 do
      if content[j] ~= 'i' then
        all[#all + 1] = content[j]
        all[#all + 1] = content[j + 1]
        at[content[j]] = #all
      end
    end
    for j = 1, #names, 2 do
      if at[names[j]] then
        all[at[names[j]]] = names[j + 1]
      else
        all[#all + 1] = names[j]
        all[#all + 1] = names[j + 1]
      end
    end
    names = all
  end
  local bare = {}
  for j = 1, #names, 2 do
    bare[j] = string.sub(names[j], 2)
    bare[j + 1] = names[j + 1]
  end
  local packed = cmsgpack.pack({plan.group, o.first, o.last, o.events, o.low_ms, o.high_ms, reason, due_ms, partitions, bare})
  plan.sealed[#plan.sealed + 1] = {o.first, packed}
  plan.drop = plan.drop or plan.stored
  plan.open, plan.stored, plan.names, plan.known = nil, false, {}, {}
end

-- Exactly how many names the group would have with this run. The packed numbers carry an upper bound only, so that the
-- usual update need not ask.
local function names_with(plan, names)
  local n = plan.stored and redis.call('HLEN', plan.key) - 1 or 0
  local counted = {}
  for _, list in ipairs({plan.names, names}) do
    for j = 1, #list, 2 do
      if not counted[list[j]] then
        counted[list[j]] = true
        if not (plan.stored and redis.call('HEXISTS', plan.key, list[j]) == 1) then n = n + 1 end
      end
    end
  end
  return n
end

-- Adds one run; false where it has to be taken apart first.
local function add_run(plan, run)
  local first_offset, last_offset, events = run[1], run[2], run[3]
  local first_score, last_score, names = run[6], run[7], run[8]
  local whole = events == 1
  local o = plan.open
  if o and first_offset <= o.last then
    plan.repeated = true -- written by a script that died before the fence
    if last_offset <= o.last then return true end
    return false
  end
  if o then
    local hold_due = o.opened + hold_ms
    local quiet_due = quiet_ms and o.score + quiet_ms or math.huge
    if first_score > quiet_due or first_score >= hold_due then
      if hold_due <= quiet_due then
        close_group(plan, 'max_hold', hold_due)
      else
        close_group(plan, 'quiet', quiet_due)
      end
      o = nil
    end
  end
  if o and o.bound + #names / 2 > max_changed then
    local exact = names_with(plan, names)
    if exact > max_changed then
      if not whole then return false end
      close_group(plan, 'max_changed', first_score)
      o = nil
    else
      o.bound = exact - #names / 2
    end
  elseif not o and not whole and #names / 2 > max_changed then
    return false
  end
  local opened = o and o.opened or first_score
  if not whole and (last_score - opened >= hold_ms or (max_events > 0 and (o and o.events or 0) + events > max_events)) then
    return false
  end
  if not o then
    o = {first = first_offset, opened = first_score, events = 0, bound = 0, low_ms = run[4], high_ms = run[5]}
    plan.open = o
  end
  o.last, o.score, o.events, o.bound = last_offset, last_score, o.events + events, o.bound + #names / 2
  o.low_ms, o.high_ms = math.min(o.low_ms, run[4]), math.max(o.high_ms, run[5])
  for j = 1, #names, 2 do
    local at = plan.known[names[j]]
    if at then
      plan.names[at + 1] = names[j + 1]
    else
      plan.names[#plan.names + 1] = names[j]
      plan.names[#plan.names + 1] = names[j + 1]
      plan.known[names[j]] = #plan.names - 1
    end
  end
  if max_events > 0 and o.events >= max_events then close_group(plan, 'max_events', last_score) end
  return true
end

for g = 1, #groups do
  local plan = load_group(groups[g][1])
  plans[g] = plan
  for r = 1, #groups[g][2] do
    if not add_run(plan, groups[g][2][r]) then
      detail[#detail + 1] = g
      break
    end
  end
end
if #detail > 0 then return {'detail', detail} end

-- ---- write: sealed records, then groups, the fence last
local function in_chunks(command, key, values, tail)
  for from = 1, #values, 4000 do
    redis.call(command, key, unpack(values, from, math.min(from + 3999, #values)))
  end
end
local silent_from = quiet_ms and math.max(arrived or 0, tonumber(state[3] or '0')) or 0
local sealed, to_outbox, to_due, to_first, gone = {}, {}, {}, {}, {}
for g = 1, #plans do
  for s = 1, #plans[g].sealed do
    to_outbox[#to_outbox + 1] = plans[g].sealed[s][1]
    to_outbox[#to_outbox + 1] = plans[g].sealed[s][2]
    sealed[#sealed + 1] = plans[g].sealed[s][2]
  end
end
in_chunks('ZADD', outbox, to_outbox)
for g = 1, #plans do
  local plan, o = plans[g], plans[g].open
  if plan.drop then redis.call('UNLINK', plan.key) end
  if o then
    local info = cmsgpack.pack({epoch, o.first, o.last - o.first, o.opened, o.score - o.opened, o.events,
                                o.low_ms - o.opened, o.high_ms - o.low_ms, o.bound})
    if #plan.names <= 4000 then
      redis.call('HSET', plan.key, 'i', info, unpack(plan.names))
    else
      in_chunks('HSET', plan.key, plan.names)
      redis.call('HSET', plan.key, 'i', info)
    end
    to_due[#to_due + 1] = math.max(o.score, silent_from)
    to_due[#to_due + 1] = plan.group
    if not plan.stored or plan.repeated then
      to_first[#to_first + 1] = o.first
      to_first[#to_first + 1] = plan.group
    end
  elseif plan.drop then
    gone[#gone + 1] = plan.group
  end
end
in_chunks('ZADD', due, to_due)
in_chunks('ZADD', first, to_first)
in_chunks('ZREM', due, gone)
in_chunks('ZREM', first, gone)
clock = math.max(tonumber(clock), tonumber(state[3] or '0'))
clock = string.format('%.0f', clock)
redis.call('HSET', meta, 'clock', clock, 'record_clock', record_clock, 'fence', to)
return {'ok', clock, sealed}
