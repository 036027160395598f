#!lua
-- Does ahead of fold.lua what would hold Redis for too long together with the rest of the range: puts sessions that begin and end
-- within it into the outbox, opens groups, adds runs to groups that are open and stay so, seals those that end. What is new lies
-- beyond the fence, by first offset: nobody sees it before the fence has moved, and whoever begins anew drops it. What a group was
-- before that goes on, or ends together with a session of the range, is kept until then: whoever begins anew brings it back, and so
-- does whoever seals or reads the outbox. One that had ended before is sealed for good.
-- Runs of a group come in offset order, and none after one that was left.
--
-- KEYS[1]  meta          hash
-- KEYS[2]  due           zset
-- KEYS[3]  first         zset
-- KEYS[4]  outbox        zset
-- KEYS[5]  group_prefix  prefix of the sidecar hashes (same hash tag)
-- ARGV[1]  token         text
-- ARGV[2]  fence         offset expected
-- ARGV[3]  to            offset of the fence after the range
-- ARGV[4]  attempt       text: of all portions of one attempt to fold, and of its fold.lua
-- ARGV[5]  number        of the portion, from 1 on; before the first one what another attempt has staged is dropped
-- ARGV[6]  sessions      msgpack array, as "closed" in fold.lua
-- ARGV[7]  plain         msgpack array, as in fold.lua
-- ARGV[8]  arrived       ms, "" = it had been waiting; as in fold.lua
-- ARGV[9]  quiet_ms      a gap longer than this ends a session; "" = only bounds close here
-- ARGV[10] hold_ms       max hold
-- ARGV[11] max_events    0 = no bound
-- ARGV[12] max_changed   names in one group
-- ARGV[13] partitions    partition count of the source, for the version of the record
--
-- Returns {"ok", positions in "sessions" and in "plain" of what is not staged, as a bound may close its group; groups opened; records of
--         groups that had ended, one after the other; 1 if this very portion was staged before and the reply was lost; positions in
--         "sessions" of those that ended together with an open group, and the records of these; sessions done, groups done: what is
--         behind them was too much for one script and belongs to the next portion; names read of groups that are not staged}. Positions
--         are msgpack arrays
--         {"already"} when this very range was folded by this owner and the reply was lost
--         {"again"} to be called again: what another attempt has staged is undone in several scripts
--         {"refused", "no-state" | "token" | "fence" | "staged"}
-- Cost    about 3 us a session, 5 us a group that opens, 12 us one that goes on, 30 us one that ends, 0.5 us each of its names; what it
--         reads of names ends it. Repeating it changes nothing.
local meta, due, first, outbox, prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, fence, to, attempt, number = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local sessions, plain, arrived = cmsgpack.unpack(ARGV[6]), cmsgpack.unpack(ARGV[7]), tonumber(ARGV[8])
local quiet_ms, hold_ms, max_events, max_changed = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local partitions = tonumber(ARGV[13])
local INFO, PAGE = '\255', 4000 -- the field of a group's numbers; values in one call
local MOST_READ, ENDING, BYTES = 2500, 20, 75 -- names of groups that end; such a group, or so many bytes, are as much as some or one
local pack = cmsgpack.pack
-- include beyond.lua

local state = redis.call('HMGET', meta, 'token', 'fence', 'attempt', 'clock', 'epoch')
if not state[2] then return {'refused', 'no-state'} end
if state[1] ~= token then return {'refused', 'token'} end
if state[2] == to then return {'already'} end
if state[2] ~= fence then return {'refused', 'fence'} end
-- None is missing: Redis may have come back without the last ones. One that is sent twice changes nothing.
local this = attempt .. ':' .. number
if number == 1 then
  if not drop_beyond(fence) then return {'again'} end
elseif state[3] ~= this and state[3] ~= attempt .. ':' .. number - 1 then
  return {'refused', 'staged'}
end

local fence_offset, epoch = tonumber(fence), state[5]
-- Silence is counted from here on, if not from a score: see fold.lua.
local silent_from = quiet_ms and math.max(arrived or 0, tonumber(state[4] or '0')) or 0
-- include joining.lua

local to_outbox, to_due, to_first, gone, gone_keys, before = {}, {}, {}, {}, {}, {}
local sealed, joint, joint_sessions = {}, {}, {}
local is_gone, is_held = {}, {}
local read, read_in_vain = 0, 0

-- An open group leaves, with this record.
local function leaves(group, first_offset, record)
  is_gone[group] = true
  gone[#gone + 1], gone_keys[#gone_keys + 1] = group, prefix .. group
  to_outbox[#to_outbox + 1], to_outbox[#to_outbox + 2] = first_offset, record
  read = read + #record / BYTES
end

-- Seals an open group that had ended before a session, or ends with it; else the session is left to fold.lua, with all that follows.
local function has_ended(group, opened_at, session_at, packed_entry, first_score, last_score)
  local way, i, record, content = ending_at(group, opened_at, packed_entry, first_score, last_score)
  read = read + ENDING + #content / 2
  local timer = way == 'together' and #content <= PAGE and redis.call('ZSCORE', due, group)
  if not way or i[2] + i[3] > fence_offset or way == 'together' and not timer then
    is_held[group] = true
    read_in_vain = read_in_vain + #content / 2
    return nil
  end
  if way == 'apart' then
    sealed[#sealed + 1] = record
  else
    joint[#joint + 1] = record
    before[#before + 1], before[#before + 2] = group, pack(session_at, content, timer)
  end
  leaves(group, i[2], record)
  return way
end

-- Seals an open group if it had ended before a run that opens it anew; else that is left to fold.lua.
local function had_ended(group, opened_at, run)
  local packed, names, content = stored(prefix .. group)
  read = read + ENDING + #content / 2
  local i, last, score
  if packed then i, last, score = numbers_of(packed) end
  if not i or i[1] ~= epoch or i[2] ~= opened_at or last > fence_offset or run[2] <= last or not is_over(i, score, run[4]) then
    is_held[group] = true
    read_in_vain = read_in_vain + #content / 2
    return false
  end
  sealed[#sealed + 1] = record_of(group, i, last, score, i[6], i[4] + i[7], i[4] + i[7] + i[8], names)
  leaves(group, i[2], sealed[#sealed])
  return true
end

-- Adds a run to an open group; false where that does not go.
local moved = {}
local function goes_on(group, opened_at, fields, score)
  local key, asked = prefix .. group, {INFO}
  for n = 3, #fields, 2 do asked[#asked + 1] = fields[n] end
  local held = redis.call('HMGET', key, unpack(asked))
  if not held[1] then return false end
  local i, stored_last, stored_score = numbers_of(held[1])
  local run, last = numbers_of(fields[2])
  if i[1] ~= epoch or i[2] ~= opened_at then return false end
  if last == stored_last then return true end -- a copy of this script
  if run[2] <= stored_last or (quiet_ms and is_over(i, stored_score, run[4])) then return false end
  local numbers = joined(i, stored_score, run, last, score)
  if not numbers then return false end
  fields[2] = numbers
  moved[#moved + 1], moved[#moved + 2] = key, fields
  local values = {held[1]}
  for n = 2, #asked do values[2 * n - 2], values[2 * n - 1] = asked[n], held[n] end
  before[#before + 1], before[#before + 2] = group, pack(false, values)
  return true
end

-- At which offset groups were opened, false where they are not open: asked for in a few calls.
local function which_are_open(values, step)
  local found = {}
  for from = 1, #values / step, PAGE do
    local members, till = {}, math.min(from + PAGE - 1, #values / step)
    for i = from, till do members[i - from + 1] = values[(i - 1) * step + 1] end
    local scores = redis.call('ZMSCORE', first, unpack(members))
    for i = from, till do
      local opened_at = tonumber(scores[i - from + 1] or fence_offset + 1)
      found[i] = opened_at <= fence_offset and opened_at
    end
  end
  return found
end
local function in_chunks(command, key, values)
  for from = 1, #values, PAGE do
    redis.call(command, key, unpack(values, from, math.min(from + PAGE - 1, #values)))
  end
end

-- Sessions that have ended together with an open group already: a copy of this script did that, and perhaps nobody knows.
local function which_are_joint()
  local found, groups, at_of = {}, {}, {}
  if redis.call('EXISTS', undo) == 0 then return found end
  for i = 1, #sessions / 5 do
    local group = sessions[(i - 1) * 5 + 1]
    if group ~= groups[#groups] then groups[#groups + 1] = group end
  end
  for from = 1, #groups, PAGE do
    local till = math.min(from + PAGE - 1, #groups)
    local kept = redis.call('HMGET', undo, unpack(groups, from, till))
    for g = from, till do
      if kept[g - from + 1] then at_of[groups[g]] = select(2, cmsgpack.unpack_one(kept[g - from + 1])) end
    end
  end
  for i = 1, #sessions / 5 do found[i] = at_of[sessions[(i - 1) * 5 + 1]] == sessions[(i - 1) * 5 + 2] end
  return found
end

local open_sessions, open_groups = {}, {}
local was_open, was_joint = which_are_open(sessions, 5), which_are_joint()
local sessions_done = 0
while sessions_done < #sessions / 5 and read < MOST_READ do
  local i, at = sessions_done + 1, sessions_done * 5
  local group, session_at, packed_entry = sessions[at + 1], sessions[at + 2], sessions[at + 5]
  local way
  if was_open[i] and not is_gone[group] then
    way = not is_held[group] and has_ended(group, was_open[i], session_at, packed_entry, sessions[at + 3], sessions[at + 4]) or 'held'
  elseif was_joint[i] then
    way = 'together'
  end
  if way == 'held' then
    open_sessions[#open_sessions + 1] = i
  elseif way == 'together' then
    joint_sessions[#joint_sessions + 1] = i
  else
    to_outbox[#to_outbox + 1], to_outbox[#to_outbox + 2] = session_at, packed_entry
  end
  sessions_done = i
end
was_open = which_are_open(plain, 4)
local fresh, plain_done = {}, 0
while sessions_done == #sessions / 5 and plain_done < #plain / 4 and read < MOST_READ do
  local i, at = plain_done + 1, plain_done * 4
  local group, fields = plain[at + 1], plain[at + 4]
  if was_open[i] and not is_gone[group] then
    if is_held[group] then
      open_groups[#open_groups + 1] = i
    elseif not goes_on(group, was_open[i], fields, plain[at + 3]) then
      if quiet_ms and had_ended(group, was_open[i], (numbers_of(fields[2]))) then
        fresh[#fresh + 1] = i
      else
        open_groups[#open_groups + 1] = i
      end
    end
  else
    fresh[#fresh + 1] = i
  end
  plain_done = i
end
in_chunks('HSET', undo, before)
for m = 1, #moved, 2 do redis.call('HSET', moved[m], unpack(moved[m + 1])) end
in_chunks('ZADD', outbox, to_outbox)
for from = 1, #gone_keys, PAGE do redis.call('UNLINK', unpack(gone_keys, from, math.min(from + PAGE - 1, #gone_keys))) end
in_chunks('ZREM', due, gone)
in_chunks('ZREM', first, gone)
for f = 1, #fresh do
  local at = (fresh[f] - 1) * 4
  local group, fields = plain[at + 1], plain[at + 4]
  local key = prefix .. group
  if redis.call('HSET', key, unpack(fields)) < #fields / 2 then -- a leftover of an older state, or a copy of this script
    redis.call('DEL', key)
    redis.call('HSET', key, unpack(fields))
  end
  to_due[#to_due + 1], to_due[#to_due + 2] = math.max(plain[at + 3], silent_from), group
  to_first[#to_first + 1], to_first[#to_first + 2] = plain[at + 2], group
end
in_chunks('ZADD', due, to_due)
in_chunks('ZADD', first, to_first)
redis.call('HSET', meta, 'attempt', this)
return {'ok', pack(open_sessions), pack(open_groups), #to_first / 2, table.concat(sealed), state[3] == this and 1 or 0,
        pack(joint_sessions), table.concat(joint), sessions_done, plain_done, read_in_vain}
