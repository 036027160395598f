#!lua
-- Folds a range of source offsets into the open groups of a shard and moves the fence to its end.
-- Everything is worked out before anything is written, and the fence is written last: a script that dies half-way
-- leaves groups that a repetition recognises by their last offset. What it had sealed may be sealed once more, under another id.
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
-- ARGV[14] arrived       ms; when the range arrived, as far as it is known; "" = it had been waiting. Where gaps close groups, scores
--                        are record time: silence is counted from the arrival, or a producer whose clock is behind would see every
--                        group closed at once
-- ARGV[15] staged        sessions of the range that stage.lua has put into the outbox
-- ARGV[16] plain         msgpack array, four values for each group of one run that no bound closes by itself: group, first offset,
--                        last score, {"\255", packed numbers, name, value, …} as its sidecar holds it if the group opens with it
-- ARGV[17] attempt       text: of what was staged, and the number of its last portion; "" = nothing was
-- ARGV[18] opened        groups of the range that stage.lua has opened
-- ARGV[19] ended_ahead   records of the range that stage.lua has put into the outbox before the fence: sessions that continued a group
-- ARGV[20] late          ms that record time was behind the arrival of the newest event that came live; for the next owner
--
-- Returns {"ok", clock, sealed records one after the other, msgpack array of the positions in "closed" of those sessions that are
--         not in the outbox as they were sent, groups that ended or were otherwise looked at one by one}
--         {"already", clock} when this very range was folded by this owner and the reply was lost
--         {"detail", {group whose runs must be single events, …}}, nothing written
--         {"long"} too many names of groups that end: to be staged first, nothing written
--         {"full"} the outbox must be sent first, nothing written
--         {"again"} to be called again: what another attempt has staged is undone in several scripts
--         {"refused", "no-state" | "token" | "fence" | "staged"}
-- Cost    about 5 us a group that opens, 10 us one that was open, 4 us a session that has ended; the caller sends some 10 ms' worth.
local meta, due, first, outbox, prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, fence, to, clock, record_clock = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local quiet_ms, hold_ms, max_events, max_changed = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local outbox_limit, partitions, arrived, staged = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[14]), tonumber(ARGV[15])
local plain, attempt, opened, ended_ahead = cmsgpack.unpack(ARGV[16]), ARGV[17], tonumber(ARGV[18]), tonumber(ARGV[19])
local late = ARGV[20]
local INFO, PAGE = '\255', 4000 -- the field of a group's numbers: no name, as it is not UTF-8; values in one call
local call, pack, insert = redis.call, cmsgpack.pack, table.insert
-- include beyond.lua

local state = call('HMGET', meta, 'token', 'fence', 'clock', 'epoch', 'attempt')
if not state[2] then return {'refused', 'no-state'} end
if state[1] ~= token then return {'refused', 'token'} end
if state[2] == to then return {'already', state[3]} end
if state[2] ~= fence then return {'refused', 'fence'} end
local beyond = '(' .. fence
local has_staged = attempt ~= ''
local is_left = not has_staged and call('EXISTS', undo) == 1
if call('ZCOUNT', outbox, beyond, '+inf') ~= staged or call('ZCOUNT', first, beyond, '+inf') ~= opened
   or has_staged and state[5] ~= attempt or is_left then
  if has_staged then return {'refused', 'staged'} end
  if not drop_beyond(fence) then return {'again'} end
end
if call('ZCOUNT', outbox, '-inf', fence) - ended_ahead >= outbox_limit then return {'full'} end
local epoch = state[4]
-- Silence is counted from here on, if not from a score: see "arrived".
local silent_from = quiet_ms and math.max(arrived or 0, tonumber(state[3] or '0')) or 0
local groups, closed = cmsgpack.unpack(ARGV[12]), cmsgpack.unpack(ARGV[13])
-- include joining.lua

-- ---- work out: reads only

-- Which groups are open: asked for in a few calls. What belongs to a group that stage.lua has opened is not in the arguments.
local function which_are_open(count, step, at)
  local found = {}
  for from = 1, count, PAGE do
    local members, till = {}, math.min(from + PAGE - 1, count)
    for i = from, till do members[i - from + 1] = at((i - 1) * step + 1) end
    local scores = call('ZMSCORE', first, unpack(members))
    for i = from, till do found[i] = scores[i - from + 1] end
  end
  return found
end
local is_open = which_are_open(#plain / 4, 4, function(i) return plain[i] end)
local was_open = which_are_open(#closed / 5, 5, function(i) return closed[i] end)

local plans, detail, asked = {}, {}, {}
local plan_of, closed_now = {}, {}

-- The open fold of a group while it is worked on: numbers, names to be added, and whether what Redis holds is still part of it.
local function plan_for(group)
  local plan = plan_of[group]
  if plan then return plan end
  local key = prefix .. group
  local packed = not closed_now[group] and call('HGET', key, INFO)
  plan = {group = group, key = key, sealed = {}, stored = false, drop = false, names = {}}
  if packed then
    local i = cmsgpack.unpack(packed)
    -- Otherwise of an older state, or of a script that died half-way: what it had closed before was beyond the fence and is gone.
    if i[1] == epoch and tonumber(call('ZSCORE', first, group) or -1) == i[2] then
      plan.open = {first = i[2], last = i[2] + i[3], opened = i[4], score = i[4] + i[5], events = i[6],
                   low_ms = i[4] + i[7], high_ms = i[4] + i[7] + i[8], bound = i[9], silent = i[4] + i[5] + (i[10] or 0)}
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

-- Most groups need no plan. One that was open may end: with what it holds, or together with a session that continues it.
local to_outbox, elsewhere, ended = {}, {}, {}
local function ends(group, i, record)
  local at = #ended
  ended[at + 1], ended[at + 2], ended[at + 3], ended[at + 4] = group, prefix .. group, i[2], record
  closed_now[group] = true
end
local function has_ended(group, ...)
  local way, i, record = ending_at(group, ...)
  if way then ends(group, i, record) end
  return way
end
local MOST_READ = has_staged and math.huge or 4000
for i = 1, #closed / 5 do
  if names_read > MOST_READ then return {'long'} end
  local at = (i - 1) * 5
  local group = closed[at + 1]
  local known = plan_of[group]
  local is_held = was_open[i] and not closed_now[group] and (known == nil or known.open)
  local way = is_held and not known and has_ended(group, tonumber(was_open[i]), closed[at + 5], closed[at + 3], closed[at + 4])
  if way == 'together' then
    elsewhere[#elsewhere + 1] = i
  elseif is_held and not way then
    local plan, entry = plan_for(group), cmsgpack.unpack(closed[at + 5])
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

-- One run, of a group that is not open, or has been and is over, or is and stays so.
local fresh, moved = {}, {}
local function is_moved(group, opened_at, fields, score)
  local key = prefix .. group
  local packed = call('HGET', key, INFO)
  if not packed then return false end
  local i, stored_last, stored_score = numbers_of(packed)
  local run, last = numbers_of(fields[2])
  if i[1] ~= epoch or i[2] ~= opened_at or run[2] <= stored_last then return false end
  if quiet_ms and is_over(i, stored_score, run[4]) then
    local _, names = stored(key)
    ends(group, i, record_of(group, i, stored_last, stored_score, i[6], i[4] + i[7], i[4] + i[7] + i[8], names))
    return false
  end
  local numbers = joined(i, stored_score, run, last, score)
  if not numbers then return false end
  fields[2] = numbers
  moved[#moved + 1] = key
  moved[#moved + 1] = fields
  return true
end
local to_due, to_first = {}, {}
for g = 1, #plain, 4 do
  if names_read > MOST_READ then return {'long'} end
  local group, score, fields = plain[g], plain[g + 2], plain[g + 3]
  local is_held = is_open[(g + 3) / 4] and not closed_now[group]
  local is_kept = is_held and not plan_of[group] and is_moved(group, tonumber(is_open[(g + 3) / 4]), fields, score)
  if is_held and not is_kept and not closed_now[group] then
    local names, run, last = {}, numbers_of(fields[2])
    for n = 3, #fields, 2 do names[fields[n]] = fields[n + 1] end
    local low = run[4] + run[7]
    add(plan_for(group), {run[2], last, run[6], low, low + run[8], run[4], score, run[9], names})
  else
    if not is_kept then
      fresh[#fresh + 1] = prefix .. group
      fresh[#fresh + 1] = fields
      to_first[#to_first + 1] = plain[g + 1]
      to_first[#to_first + 1] = group
      to_due[#to_due + 1] = math.max(score, silent_from)
      to_due[#to_due + 1] = group
    end
  end
end
for g = 1, #groups do
  local plan, runs = plan_for(groups[g][1]), groups[g][2]
  for r = 1, #runs do
    if not add(plan, runs[r]) then break end
  end
end
if #detail > 0 then return {'detail', detail} end

-- ---- write: sealed records, then groups, the fence last
local function in_chunks(command, key, values)
  for from = 1, #values, PAGE do
    local till = math.min(from + PAGE - 1, #values)
    if key then
      call(command, key, unpack(values, from, till))
    else
      call(command, unpack(values, from, till))
    end
  end
end

local sealed, gone, closed_groups, closed_keys = {}, {}, {}, {}
for p = 1, #plans do
  for s = 1, #plans[p].sealed, 2 do
    insert(to_outbox, plans[p].sealed[s])
    insert(to_outbox, plans[p].sealed[s + 1])
    insert(sealed, plans[p].sealed[s + 1])
  end
end
for e = 1, #ended, 4 do
  local at = (e - 1) / 4 + 1
  closed_groups[at], closed_keys[at], sealed[#sealed + 1] = ended[e], ended[e + 1], ended[e + 3]
  insert(to_outbox, ended[e + 2])
  insert(to_outbox, ended[e + 3])
end
in_chunks('ZADD', outbox, to_outbox)
in_chunks('UNLINK', nil, closed_keys)
in_chunks('ZREM', due, closed_groups)
in_chunks('ZREM', first, closed_groups)
for f = 1, #fresh, 2 do
  local key, fields = fresh[f], fresh[f + 1]
  if call('HSET', key, unpack(fields)) < #fields / 2 then -- a leftover of an older state: none of it belongs to this group
    call('DEL', key)
    call('HSET', key, unpack(fields))
  end
end
for m = 1, #moved, 2 do call('HSET', moved[m], unpack(moved[m + 1])) end
for p = 1, #plans do
  local plan, o = plans[p], plans[p].open
  if plan.drop then call('UNLINK', plan.key) end
  if o then
    local info = pack({epoch, o.first, o.last - o.first, o.opened, o.score - o.opened, o.events,
                       o.low_ms - o.opened, o.high_ms - o.low_ms, o.bound, since_score(o.score, o.silent or 0)})
    local fields = {INFO, info}
    for name, value in pairs(plan.names) do
      insert(fields, name)
      insert(fields, value)
    end
    in_chunks('HSET', plan.key, fields)
    if not plan.stored or plan.repeated then
      insert(to_due, math.max(o.score, silent_from))
      insert(to_due, plan.group)
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
call('UNLINK', undo)
call('HSET', meta, 'clock', clock, 'record_clock', record_clock, 'late', late, 'fence', to)
return {'ok', clock, table.concat(sealed), pack(elsewhere), #plans + #ended / 4}
