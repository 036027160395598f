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
--                        timestamp, highest timestamp, first score, last score, count of names, {name = value, …}}
-- ARGV[13] closed        msgpack array, five values for each session that has ended within the range: group, first offset,
--                        first score, last score, packed record for the outbox. Before the runs of the same group in "groups"
-- ARGV[14] arrived       ms; when the range arrived, "" = it had been waiting. Where gaps close groups, scores are record time:
--                        silence is counted from the arrival, or a producer whose clock is behind would see every group closed at once
--
-- Returns {"ok", clock, sealed records one after the other, msgpack array of the positions in "closed" of those sessions that are
--         not in the outbox as they were sent}
--         {"already", clock} when this very range was folded by this owner and the reply was lost
--         {"detail", {group whose runs must be single events, …}}, nothing written
--         {"full"} the outbox must be sent first, nothing written
--         {"refused", "no-state" | "token" | "fence"}
-- Cost    about 5 us a group that opens, 10 us one that was open, 3 us a session that has ended; the caller sends some 15 ms' worth.
local meta, due, first, outbox, prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, fence, to, clock, record_clock = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local quiet_ms, hold_ms, max_events, max_changed = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local outbox_limit, partitions, arrived = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[14])
local INFO, PAGE = '\255', 4000 -- the field of a group's numbers: no name, as it is not UTF-8; values in one call
local call, pack, insert = redis.call, cmsgpack.pack, table.insert

local state = call('HMGET', meta, 'token', 'fence', 'clock', 'epoch')
if not state[2] then return {'refused', 'no-state'} end
if state[1] ~= token then return {'refused', 'token'} end
if state[2] == to then return {'already', state[3]} end
if state[2] ~= fence then return {'refused', 'fence'} end
if call('ZCARD', outbox) >= outbox_limit then return {'full'} end
local epoch = state[4]
local groups, closed = cmsgpack.unpack(ARGV[12]), cmsgpack.unpack(ARGV[13])

-- ---- work out: reads only

-- Which groups are open: asked for in a few calls.
local function opened(count, step, at)
  local found = {}
  for from = 1, count, PAGE do
    local members, till = {}, math.min(from + PAGE - 1, count)
    for i = from, till do members[i - from + 1] = at((i - 1) * step + 1) end
    local scores = call('ZMSCORE', first, unpack(members))
    for i = from, till do found[i] = scores[i - from + 1] end
  end
  return found
end
local is_open = opened(#groups, 1, function(i) return groups[i][1] end)
local was_open = opened(#closed / 5, 5, function(i) return closed[i] end)

local plans, detail, asked = {}, {}, {}
local plan_of = {}

-- The open fold of a group while it is worked on: numbers, names to be added, and whether what Redis holds is still part of it.
local function plan_for(group)
  local plan = plan_of[group]
  if plan then return plan end
  local key = prefix .. group
  local packed = call('HGET', key, INFO)
  plan = {group = group, key = key, sealed = {}, stored = false, drop = false, names = {}}
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
  plan_of[group] = plan
  plans[#plans + 1] = plan
  return plan
end

local function close_group(plan, reason, due_ms)
  local o, names = plan.open, plan.names
  if plan.stored then
    local content, all = call('HGETALL', plan.key), {}
    for j = 1, #content, 2 do
      if content[j] ~= INFO then all[content[j]] = content[j + 1] end
    end
    for name, value in pairs(names) do all[name] = value end
    names = all
  end
  plan.sealed[#plan.sealed + 1] = o.first
  plan.sealed[#plan.sealed + 1] =
    pack({plan.group, o.first, o.last, o.events, o.low_ms, o.high_ms, reason, due_ms, partitions, names})
  plan.drop = plan.drop or plan.stored
  plan.open, plan.stored, plan.names = nil, false, {}
end

local function close_in_silence(plan)
  local hold_due, quiet_due = plan.open.opened + hold_ms, plan.open.score + (quiet_ms or math.huge)
  if hold_due <= quiet_due then
    close_group(plan, 'max_hold', hold_due)
  else
    close_group(plan, 'quiet', quiet_due)
  end
end

-- Exactly how many names the group would have with this run. The packed numbers carry an upper bound only, so that the
-- usual update need not ask.
local function names_with(plan, names)
  local n = plan.stored and call('HLEN', plan.key) - 1 or 0
  local counted = {}
  for _, map in ipairs({plan.names, names}) do
    for name in pairs(map) do
      if not counted[name] then
        counted[name] = true
        if not (plan.stored and call('HEXISTS', plan.key, name) == 1) then n = n + 1 end
      end
    end
  end
  return n
end

-- Adds one run; false where it has to be taken apart first.
local function add_run(plan, run)
  local first_offset, last_offset, events = run[1], run[2], run[3]
  local first_score, last_score, count, names = run[6], run[7], run[8], run[9]
  local whole = events == 1
  local o = plan.open
  if o and first_offset <= o.last then
    plan.repeated = true -- written by a script that died before the fence
    if last_offset <= o.last then return true end
    return false
  end
  if o and (first_score >= o.opened + hold_ms or (quiet_ms and first_score > o.score + quiet_ms)) then
    close_in_silence(plan)
    o = nil
  end
  if o and o.bound + count > max_changed then
    local exact = names_with(plan, names)
    if exact > max_changed then
      if not whole then return false end
      close_group(plan, 'max_changed', first_score)
      o = nil
    else
      o.bound = exact - count
    end
  elseif not o and not whole and count > max_changed then
    return false
  end
  local since = o and o.opened or first_score
  if not whole and (last_score - since >= hold_ms or (max_events > 0 and (o and o.events or 0) + events > max_events)) then
    return false
  end
  if not o then
    o = {first = first_offset, opened = first_score, events = 0, bound = 0, low_ms = run[4], high_ms = run[5]}
    plan.open = o
  end
  o.last, o.score, o.events, o.bound = last_offset, last_score, o.events + events, o.bound + count
  o.low_ms, o.high_ms = math.min(o.low_ms, run[4]), math.max(o.high_ms, run[5])
  for name, value in pairs(names) do plan.names[name] = value end
  if max_events > 0 and o.events >= max_events then close_group(plan, 'max_events', last_score) end
  return true
end

local function add(plan, run)
  if add_run(plan, run) then return true end
  if not asked[plan.group] then
    asked[plan.group] = true
    detail[#detail + 1] = plan.group
  end
  return false
end

local to_outbox, elsewhere = {}, {}
for i = 1, #closed / 5 do
  local at = (i - 1) * 5
  local known = plan_of[closed[at + 1]]
  if was_open[i] and (known == nil or known.open) then
    local plan, entry = plan_for(closed[at + 1]), cmsgpack.unpack(closed[at + 5])
    local count = 0
    for _ in pairs(entry[10]) do count = count + 1 end
    local run = {entry[2], entry[3], entry[4], entry[5], entry[6], closed[at + 3], closed[at + 4], count, entry[10]}
    if add(plan, run) and plan.open then close_in_silence(plan) end
    elsewhere[#elsewhere + 1] = i
  else
    insert(to_outbox, closed[at + 2])
    insert(to_outbox, closed[at + 5])
  end
end

-- What most groups are needs no plan: one run that no bound closes, of a group that is not open, or is and stays so.
local fresh, moved = {}, {}
local function is_moved(group, run)
  local key = prefix .. group
  local packed = call('HGET', key, INFO)
  local i = packed and cmsgpack.unpack(packed)
  if not i or i[1] ~= epoch or run[1] <= i[2] + i[3] then return false end
  local since, score = i[4], i[4] + i[5]
  if run[7] - since >= hold_ms or (quiet_ms and run[6] > score + quiet_ms) or i[9] + run[8] > max_changed
      or (max_events > 0 and i[6] + run[3] >= max_events) then
    return false
  end
  local low, high = math.min(since + i[7], run[4]), math.max(since + i[7] + i[8], run[5])
  local n = #moved
  moved[n + 1], moved[n + 2], moved[n + 3] = group, key, run
  moved[n + 4] = pack({epoch, i[2], run[2] - i[2], since, run[7] - since, i[6] + run[3], low - since, high - low, i[9] + run[8]})
  return true
end
for g = 1, #groups do
  local group, runs = groups[g][1], groups[g][2]
  local run = runs[1]
  if not is_open[g] and #runs == 1 and run[7] - run[6] < hold_ms and run[8] <= max_changed
      and (max_events == 0 or run[3] < max_events) then
    fresh[#fresh + 1] = groups[g]
  elseif not (is_open[g] and #runs == 1 and not plan_of[group] and is_moved(group, run)) then
    local plan = plan_for(group)
    for r = 1, #runs do
      if not add(plan, runs[r]) then break end
    end
  end
end
if #detail > 0 then return {'detail', detail} end

-- ---- write: sealed records, then groups, the fence last
local function in_chunks(command, key, values)
  for from = 1, #values, PAGE do
    call(command, key, unpack(values, from, math.min(from + PAGE - 1, #values)))
  end
end

local function write_group(key, info, names, is_new)
  local fields, n = {INFO, info}, 2
  for name, value in pairs(names) do
    fields[n + 1], fields[n + 2] = name, value
    n = n + 2
  end
  if n <= PAGE then
    local added = call('HSET', key, unpack(fields))
    if is_new and added < n / 2 then -- a leftover of an older state, or of a script that died: none of it belongs to this group
      call('DEL', key)
      call('HSET', key, unpack(fields))
    end
  else
    if is_new then call('DEL', key) end
    in_chunks('HSET', key, fields)
  end
end

local silent_from = quiet_ms and math.max(arrived or 0, tonumber(state[3] or '0')) or 0
local sealed, to_due, to_first, gone = {}, {}, {}, {}
for p = 1, #plans do
  for s = 1, #plans[p].sealed, 2 do
    insert(to_outbox, plans[p].sealed[s])
    insert(to_outbox, plans[p].sealed[s + 1])
    insert(sealed, plans[p].sealed[s + 1])
  end
end
in_chunks('ZADD', outbox, to_outbox)
for g = 1, #fresh do
  local group, run = fresh[g][1], fresh[g][2][1]
  local opened_ms = run[6]
  local info = pack({epoch, run[1], run[2] - run[1], opened_ms, run[7] - opened_ms, run[3], run[4] - opened_ms,
                     run[5] - run[4], run[8]})
  write_group(prefix .. group, info, run[9], true)
  local at = 2 * g
  to_due[at - 1], to_due[at] = math.max(run[7], silent_from), group
  to_first[at - 1], to_first[at] = run[1], group
end
for m = 1, #moved, 4 do
  write_group(moved[m + 1], moved[m + 3], moved[m + 2][9], false)
  insert(to_due, math.max(moved[m + 2][7], silent_from))
  insert(to_due, moved[m])
end
for p = 1, #plans do
  local plan, o = plans[p], plans[p].open
  if plan.drop then call('UNLINK', plan.key) end
  if o then
    local info = pack({epoch, o.first, o.last - o.first, o.opened, o.score - o.opened, o.events,
                       o.low_ms - o.opened, o.high_ms - o.low_ms, o.bound})
    write_group(plan.key, info, plan.names, false)
    insert(to_due, math.max(o.score, silent_from))
    insert(to_due, plan.group)
    if not plan.stored or plan.repeated then
      insert(to_first, o.first)
      insert(to_first, plan.group)
    end
  elseif plan.drop then
    insert(gone, plan.group)
  end
end
in_chunks('ZADD', due, to_due)
in_chunks('ZADD', first, to_first)
in_chunks('ZREM', due, gone)
in_chunks('ZREM', first, gone)
clock = string.format('%.0f', math.max(tonumber(clock), tonumber(state[3] or '0')))
call('HSET', meta, 'clock', clock, 'record_clock', record_clock, 'fence', to)
return {'ok', clock, table.concat(sealed), pack(elsewhere)}
