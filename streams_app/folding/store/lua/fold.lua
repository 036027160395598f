#!lua
-- Folds a part of a range of source offsets into the open groups of a shard. The groups of the range are sorted by their bytes. A script
-- folds them one after the other until it has done enough work, and stores the last one as the cursor. Its effect on a group is final.
-- The script that folds the last group of the range moves the fence to the end of the range.
-- The script computes everything before it writes anything, and writes fence and cursor last. If it fails half-way, its repetition
-- recognises the groups that were written by their last offset. Records that it had sealed may be sealed again, under another id.
--
-- KEYS          of the shard, see shared/shard.lua
-- token         text
-- fence         text: the expected fence
-- to            text: end of the range; the fence afterwards
-- cursor        the expected cursor, the last group that was folded; "" = the range has not begun
-- is_last       whether "groups" contains the last group of the range
-- clock         partition clock after the range, ms
-- log           text: fingerprints of folded records, up to the end of the range
-- record_clock  newest record timestamp of a folded event after the range, ms
-- late          ms that record time is behind the arrival of the newest live event, for the next owner
-- cap           wall clock that limited the timestamps of the range, ms; the next owner of the range uses the same
-- arrived       ms, text: when the range arrived, "" = it is part of a backlog; the next owner of the range uses the same
-- quiet         ms, text: quiet period after each event of the range, if that sets itself, else ""; the next owner of the range uses the same
-- learned       what was learned of the quiet period before the range, stored with its end; "" = it stays as it is stored
-- digest        digest of the events of each group, if functions assign them: they may return something else for the next owner
-- quiet_ms      a longer gap closes a session; missing = only the other bounds close a group here
-- hold_ms       max hold
-- max_events    0 = no bound
-- max_changed   maximum number of names of one group
-- max_bytes     maximum size of the events of one group, if events are kept; 0 = they are not. With kept events, the counter "names" of
--               a group is this size, and each run has one field, its events: no field is written twice with different contents
-- aggregates    whether values of one name are combined, see shared/aggregates.lua; otherwise a later one replaces an earlier one
-- dedupe        whether events have ids: an event with an id that its open group has from another event must be left out
-- leading       whether the first event of a group that is not open makes a record at once: the group stays open, and has no events
-- outbox_limit  number of entries in the outbox from which nothing is folded; the caller has compared the number of records with it
-- max_work      us: a script that has done this much work folds no further group
-- partitions    partition count of the source, for the version of the record
-- groups        two values for each group above the cursor: its member, and its events after its sessions: false, a run that no bound
--               closes by itself, or an array of runs that are added one by one, each with or without the reason why its last event
--               closes the group. A run is the group that it would open, see shared/group.lua: {first offset, start of its silence,
--               packed group} or {first offset, start of its silence, "\255", packed numbers, name, value, ...}. With "dedupe", all runs
--               are in the array, and each is followed by {number of duplicates left out after it, id, offset, ...}; a run without events
--               only counts duplicates
-- sessions      packed records, in a row, of the sessions of all groups: of the events that begin and end within the range
-- lowest        lowest first offset of the sessions
-- starts        for each group, the number of sessions of the groups before it, and at the end the number of all: 4 bytes each
-- spans         numbers of each session: where its record begins in "sessions" (4 bytes), first offset, first score, last score (doubles)
-- singly        whether each record becomes an entry of its own, because workers of an older version may claim the shard
--
-- Returns {"done" | "more", cursor, clock, sealed records in a row, msgpack array of the indexes, over all groups, of the sessions that
--         are not in the outbox as they were sent, number of sessions folded, number of groups folded, work done,
--         number of duplicates counted, lowest first offset of all records that the script has added to the outbox}
--         {"already", cursor, clock} if a reply was lost: the stored cursor, "" = the range is folded
--         {"detail", {group, {its fields, ..., its numbers} or {} if it is not open, ...}, {of each group {id, offset, ...} of those
--         stored ids that occur in its runs, ...}}, nothing written: a bound closes these groups inside a run, so the caller must send
--         runs that end there; or a run has duplicates, which the caller must leave out
--         {"full"} nothing written: the outbox must be sent first
--         {"refused", "no-state" | "token" | "fence" | "range"}
-- Cost    "max_work" and one more group: about 6 us a packed group that opens and 10 us a hash, 12 us a group that is updated, 1 us a
--         group that has only sessions, 0.3 us a session, 5 us more if its group is open, 15 us a packed group that closes and 25 us a
--         hash, 0.5 us each name, 1.5 us more if its values are combined. "work" is that sum.
-- include shard.lua
-- include group.lua
-- include records.lua
-- include timers.lua
-- include closing.lua
-- include aggregates.lua
local SESSION, SINGLE, JOINS, LOOKUP, GOES_ON, RUN, NAME, COMBINES, BYTES = 0.3, 5, 5, 1, 7, 3, 0.5, 1.5, 0.013
local OPENS, OPENS_PACKED, GOES_ON_PACKED, CLOSES, CLOSES_PACKED = 10, 6, 9, 25, 15
local SPAN = 28 -- size of the numbers of a session in "spans"

if state.fence and state.token == arg.token and state.fence == arg.to then return {'already', '', state.clock} end
local refused = refusal()
if refused then return refused end
if state.to and state.to ~= arg.to or not state.to and arg.cursor ~= '' then return {'refused', 'range'} end
if (state.cursor or '') ~= arg.cursor then return {'already', state.cursor, state.clock} end
if call('ZCARD', outbox) >= arg.outbox_limit then return {'full'} end

local groups = arg.groups
local max_events, aggregates, leading, keeps_events = arg.max_events, arg.aggregates, arg.leading, arg.max_bytes > 0
local dedupe, duplicates = arg.dedupe, 0
local most, too_much = arg.max_changed, 'max_changed'
if keeps_events then most, too_much = arg.max_bytes, 'max_bytes' end
local work = 0
local sealed, lowest_sealed, elsewhere, detail, detail_ids = {}, math.huge, {}, {}, {}
local opening, plans = {}, {}

-- ---- compute: reads only

-- include names.lua

local function seal(plan, reason, due_ms, names)
  local record = record_of(plan.group, plan.open, reason, due_ms, names)
  sealed[#sealed + 1] = record
  lowest_sealed = math.min(lowest_sealed, plan.open.first)
  work = work + (plan.is_packed and CLOSES_PACKED or CLOSES) + BYTES * #record
end

local function close(plan, reason, due_ms)
  if plan.open.events > 0 then seal(plan, reason, due_ms, plan.packed or names_of(plan)) end
  plan.is_dropped = plan.is_dropped or plan.is_stored and not plan.was_packed
  plan.open, plan.is_stored, plan.is_packed, plan.runs, plan.names, plan.packed = nil, false, false, {}, nil, nil
  if dedupe then plan.ids, plan.new_ids = {}, {} end
end

-- include ids.lua

-- Adds a run to the group of a plan, and closes the group if there is a reason. Returns false if a bound falls inside the run: the
-- caller must split it.
local function add(plan, run, ids, reason)
  local r, g = numbers_of_run(run), plan.open
  if g and r.first <= g.last then -- folded by a script that failed before it wrote the cursor, and maybe before it wrote the timer
    plan.timer = math.huge
    return r.last <= g.last
  end
  if g and closes_before(g, r.opened) then
    close(plan, closed_by(g, g.score))
    g = nil
  end
  if ids and (has_duplicates(plan, ids) or r.events == 0 and not g) then return false end
  duplicates = duplicates + (ids and ids[1] or 0)
  if r.events == 0 then
    add_ids(plan, ids)
    return true
  end
  if (g and g.names or 0) + r.names > most then
    local names = keeps_events and (g and g.names or 0) + r.names or g and names_with(plan, run) or r.names
    if names > most and r.events > 1 then return false end
    if g and names > most then
      close(plan, too_much, r.opened)
      g = nil
    elseif g then
      g.names = names - r.names
    end
  end
  if not g and leading and r.events > 1 then return false end
  if not g and leading and not reason then
    local names = {}
    for n = 5, #run, 2 do names[run[n]] = run[n + 1] end
    plan.open, plan.opens = r, true
    seal(plan, 'leading', r.score, names)
    r.events, r.names = 0, 0
    return true
  end
  local is_first = not g or g.events == 0
  local opened, events = is_first and r.opened or g.opened, (g and g.events or 0) + r.events
  if r.events > 1 and (r.score - opened >= hold_ms or max_events > 0 and events > max_events) then return false end
  if is_first then
    if g then r.silent, r.ids, r.duplicates = math.max(g.silent, r.silent), g.ids, g.duplicates end
    plan.is_packed = not g and run.names ~= nil
    g = r
    plan.open, plan.opens = g, true
    -- A script that failed half-way may have left a hash of the packed group that has closed.
    plan.is_dropped = plan.is_dropped or plan.was_packed and not plan.is_packed
  else
    g.last, g.score, g.events, g.shorter = r.last, r.score, events, r.shorter
    if not plan.is_packed then g.names = g.names + r.names end
    g.low, g.high, g.silent = math.min(g.low, r.low), math.max(g.high, r.high), math.max(g.silent, r.silent)
  end
  if aggregates then names_of(plan) end -- before the run is in plan.runs, which names_of joins
  work = work + RUN
  plan.is_changed = true
  if plan.is_packed then
    join_packed(plan, run)
  else
    run = as_hash(run)
    plan.runs[#plan.runs + 1] = run
    if plan.names then join(plan, run) end
    work = work + NAME * #run / 2
  end
  if ids then add_ids(plan, ids) end
  if reason then
    close(plan, reason, r.score)
  elseif max_events > 0 and events >= max_events then
    close(plan, 'max_events', r.score)
  end
  return true
end

-- Number of sessions of the groups before the group with this index; indexes of groups and sessions count from 0.
local function sessions_before(index) return (struct.unpack('>I4', arg.starts, 4 * index + 1)) end

-- Where the record of a session begins in "sessions"; for the number of sessions, where the last one ends.
local function start_of(s) return SPAN * s < #arg.spans and struct.unpack('>I4', arg.spans, SPAN * s + 1) or #arg.sessions end

-- Decides whether a session goes to the outbox as it was sent. If its group is open, its events are added to that group instead.
local function add_session(plan, s)
  local at, first_offset, first_score, last_score = struct.unpack('>I4ddd', arg.spans, SPAN * s + 1)
  if plan.open and closes_before(plan.open, first_score) then close(plan, closed_by(plan.open, plan.open.score)) end
  if not plan.open then return true end
  local record = arg.sessions:sub(at + 1, start_of(s + 1))
  local names_at, _, _, last, events, low, high = cmsgpack.unpack_limit(record, 9, 1) -- its names are the tenth value of an array
  local names = record:sub(names_at + 1)
  work = work + JOINS
  local numbers = {first = first_offset, last = last, opened = first_score, score = last_score, events = events, low = low, high = high,
                   names = map_size(names), silent = last_score, shorter = 0, ids = 0, duplicates = 0}
  elsewhere[#elsewhere + 1] = s
  if last <= plan.open.last then return true end -- folded by a script that failed before it wrote the cursor
  if not add(plan, {first_offset, last_score, '', numbers = numbers, names = names}) then return false end
  if plan.open then close(plan, closed_by(plan.open, plan.open.score)) end
  return true
end

-- The numbers of a group that was opened at this offset, and its packed names if it is packed; nil if it is not open.
local function open_group(group, opened_at, packed)
  local g, names = nil, nil
  if opened_at then g, names = group_of(group, packed) end
  if g and g.first == opened_at then return g, names end
end

local function plan_for(group, opened_at, packed)
  local g, names = open_group(group, opened_at, packed)
  -- If the group is stored but not open, it belongs to an older state.
  return {group = group, key = prefix .. group, opened_at = opened_at, runs = {}, open = g, is_stored = g ~= nil, is_dropped = g == nil,
          was_packed = packed, is_packed = names ~= nil, packed = names,
          timer = g and g.silent - g.shorter, ids = dedupe and {}, new_ids = dedupe and {}, has_ids = dedupe or g and g.ids > 0}
end

-- Plans the effect of the range on one group. Returns false if a bound falls inside a run.
local function take(group, index, rest, opened_at, packed)
  local is_plain = rest and type(rest[1]) == 'number'
  local plan = (opened_at or rest and not is_plain) and plan_for(group, opened_at, packed)
  if plan and plan.open then
    for s = sessions_before(index), sessions_before(index + 1) - 1 do
      if not add_session(plan, s) then return false end
    end
  end
  if not plan then
    if rest then opening[#opening + 1], opening[#opening + 2] = group, rest end
    work = work + (not rest and LOOKUP or #rest == 3 and OPENS_PACKED or OPENS + NAME * #rest / 2)
    return true
  end
  work = work + (packed and GOES_ON_PACKED + BYTES * #packed or GOES_ON)
  if is_plain then
    if not add(plan, rest) then return false end
  else
    local step = dedupe and 2 or 1
    for r = 1, rest and #rest or 0 do
      local run, following = rest[r], rest[r + step]
      local is_run, ids = type(run) == 'table' and type(run[2]) == 'number', dedupe and rest[r + 1]
      if is_run and not add(plan, run, ids, type(following) == 'string' and following) then return false end
    end
  end
  plans[#plans + 1] = plan
  return true
end

-- The first offsets of the given groups, false if they are not open, and their fields of "open", false if they are not packed.
local function stored_of(members)
  local opened_at, has_open, packed = call('ZMSCORE', first, unpack(members)), false, {}
  for m = 1, #members do
    opened_at[m] = opened_at[m] and tonumber(opened_at[m])
    has_open = has_open or opened_at[m]
  end
  if has_open and state.format == PACKED then packed = call('HMGET', open, unpack(members)) end
  return opened_at, packed
end

local taken, count, opened_at, packed, page_from = 0, #groups / 2, {}, {}, 0
-- Work of the sessions of a group, on average: counting those of each group would cost as much.
local sessions_each = count > 0 and (arg.singly and SINGLE or SESSION) * #arg.spans / SPAN / count or 0
while taken < count and work < arg.max_work do
  work = work + sessions_each
  if taken == page_from + #opened_at then
    local members = {}
    for g = taken, math.min(taken + 99, count - 1) do members[#members + 1] = groups[2 * g + 1] end
    page_from, opened_at, packed = taken, stored_of(members)
  end
  local at = 2 * taken
  local group, stored, value = groups[at + 1], opened_at[taken - page_from + 1], packed[taken - page_from + 1] or nil
  if not take(group, taken, groups[at + 2], stored, value) then
    local content, g, names = {}, open_group(group, stored, value)
    if names then
      for name in pairs(unpacked(names)) do content[#content + 1] = name end
    elseif g then
      content = call('HKEYS', prefix .. group)
    end
    if g then content[#content + 1] = packed_of(g) end
    detail[#detail + 1], detail[#detail + 2] = group, content
    if dedupe then
      local known, rest = {}, groups[at + 2]
      for r = 2, #content > 0 and #rest or 0 do
        if type(rest[r]) == 'table' and type(rest[r][2]) ~= 'number' then
          for id, offset in pairs(stored_ids({group = group}, rest[r])) do known[#known + 1], known[#known + 2] = id, offset end
        end
      end
      detail_ids[#detail_ids + 1] = known
    end
    work = work + NAME * #content
  end
  taken = taken + 1
end
if #detail > 0 then return {'detail', detail, detail_ids} end

-- ---- write: sealed records, then groups, fence and cursor last

-- The records of the first sessions without those that are elsewhere, and the lowest of their first offsets.
local function sessions_in_outbox(number)
  local lowest, parts, left_out, from = math.huge, {}, 1, 0
  for s = 0, number - 1 do
    local at, first_offset = struct.unpack('>I4d', arg.spans, SPAN * s + 1)
    if elsewhere[left_out] == s then
      parts[#parts + 1] = arg.sessions:sub(from + 1, at)
      from, left_out = start_of(s + 1), left_out + 1
    else
      lowest = math.min(lowest, first_offset)
    end
  end
  parts[#parts + 1] = arg.sessions:sub(from + 1, start_of(number))
  return table.concat(parts), lowest
end
local session_number, records, lowest = sessions_before(taken), arg.sessions, arg.lowest
if #elsewhere > 0 or taken < count then records, lowest = sessions_in_outbox(session_number) end
local sealed_records, session_records = table.concat(sealed), session_number - #elsewhere
lowest = session_records > 0 and math.min(lowest, lowest_sealed) or lowest_sealed
add_block(lowest, records .. sealed_records, session_records + #sealed)
local to_due, to_timers, to_first, to_open, gone, not_due, not_packed, left = {}, {}, {}, {}, {}, {}, {}, {}
-- Plans to remove the packed form of a group, also of one that is opened now: a script that failed half-way may have left it.
local function drops_packed(group)
  if state.format == PACKED then not_packed[#not_packed + 1] = group end
end
local function set_timer(group, first_offset, timer, is_packed)
  if is_packed then
    to_timers[#to_timers + 1] = {timer, first_offset}
  else
    to_due[#to_due + 1], to_due[#to_due + 2] = timer, group
  end
end
local function opens(group, first_offset, timer, is_packed)
  set_timer(group, first_offset, timer, is_packed)
  to_first[#to_first + 1], to_first[#to_first + 2] = first_offset, group
end
-- Writes the fields of a run from a position on. Returns true if all of them are new.
local function write_fields(key, run, from)
  local new = 0
  for at = from, #run, PAGE do new = new + call('HSET', key, unpack(run, at, math.min(at + PAGE - 1, #run))) end
  return new == (#run - from + 1) / 2
end
local function write_new_hash(key, run, from)
  if not write_fields(key, run, from) then -- the key has fields of an older state, which do not belong to this group
    call('DEL', key)
    write_fields(key, run, from)
  end
end
-- Writes a packed group. It becomes a hash if it has grown too large.
local function write_packed(plan, g)
  local names = plan.packed or pack(plan.names)
  if #names <= PACKED_BYTES then
    to_open[#to_open + 1], to_open[#to_open + 2] = plan.group, packed_of(g) .. names
    return
  end
  local fields = {INFO, packed_of(g, state.epoch)}
  for name, value in pairs(names_of(plan)) do fields[#fields + 1], fields[#fields + 2] = name, value end
  write_new_hash(plan.key, fields, 1)
  plan.is_packed = false
end
for f = 1, #opening, 2 do
  local group, run = opening[f], opening[f + 1]
  if #run == 3 then
    to_open[#to_open + 1], to_open[#to_open + 2] = group, run[3]
  else
    write_new_hash(prefix .. group, run, 3)
    drops_packed(group)
  end
  opens(group, run[1], run[2], #run == 3)
end
for p = 1, #plans do
  local plan = plans[p]
  local g, runs = plan.open, plan.runs
  if plan.is_dropped then unlink(plan.has_ids and {plan.key, ids_prefix .. plan.group} or {plan.key}) end
  if g then
    -- Before the group: if the script fails after it, the ids are repeated with the same offsets, and the events are not in the group.
    if dedupe then in_pages('HSET', ids_prefix .. plan.group, plan.new_ids) end
    if plan.is_packed then
      if plan.is_changed then write_packed(plan, g) end
    elseif #runs > 0 and aggregates then
      -- All in one command, which is possible because max_changed is low: if the script fails, it has added everything or nothing.
      local fields = {INFO, packed_of(g, state.epoch)}
      for name, value in pairs(plan.names) do fields[#fields + 1], fields[#fields + 2] = name, value end
      write_fields(plan.key, fields, 1)
    elseif #runs > 0 then
      runs[#runs][4] = packed_of(g, state.epoch) -- the numbers of the group replace those of the last run
      for r = 1, #runs - 1 do write_fields(plan.key, runs[r], 5) end
      write_fields(plan.key, runs[#runs], 3)
    elseif plan.opens or plan.is_counted then
      call('HSET', plan.key, INFO, packed_of(g, state.epoch)) -- the group has no events, or no new ones
    end
    local timer = g.silent - g.shorter
    if plan.opens or not plan.is_stored then
      opens(plan.group, g.first, timer, plan.is_packed)
    elseif timer < plan.timer or plan.was_packed and not plan.is_packed then -- a timer is never late
      set_timer(plan.group, g.first, timer, plan.is_packed)
    end
  elseif plan.opened_at then
    gone[#gone + 1] = plan.group
    if plan.was_packed then left[#left + 1] = plan.key end -- a script that failed half-way may have left a hash with less of the group
  end
  if not plan.is_packed and (plan.was_packed or plan.opens) then drops_packed(plan.group) end
  if plan.opened_at and not plan.was_packed and (plan.is_packed or not g) then not_due[#not_due + 1] = plan.group end
end
if to_open[1] then use_packed_format() end
in_pages('ZADD', due, to_due)
add_timers(to_timers)
in_pages('HSET', open, to_open)
unlink(left)
in_pages('HDEL', open, not_packed)
in_pages('ZREM', due, not_due)
in_pages('ZREM', first, gone)
in_pages('ZADD', first, to_first)
local is_done, cursor, clock = arg.is_last and taken == count, '', state.clock or '0'
if is_done then
  clock = string.format('%.0f', math.max(arg.clock, tonumber(clock)))
  if arg.learned ~= '' then call('HSET', meta, 'learned', arg.learned) end
  call('HSET', meta, 'clock', clock, 'record_clock', arg.record_clock, 'late', arg.late, 'log', arg.log, 'fence', arg.to)
  drop_range() -- after the fence: if the script failed with neither written, the range would be folded again
else
  cursor = groups[2 * taken - 1]
  if arg.quiet ~= '' then call('HSET', meta, 'quiet', arg.quiet) end -- before the cursor, with which the next owner needs it
  call('HSET', meta, 'to', arg.to, 'cursor', cursor, 'cap', arg.cap, 'arrived', arg.arrived, 'digest', arg.digest,
       'log', arg.log)
end
return {is_done and 'done' or 'more', cursor, clock, sealed_records, pack(elsewhere), session_number, taken, math.ceil(work),
        duplicates, string.format('%.0f', session_records + #sealed > 0 and lowest or 0)}
