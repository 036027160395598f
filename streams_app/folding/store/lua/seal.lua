#!lua flags=allow-oom
-- Moves due groups out of the open state into the outbox, each with its fold id and what it holds.
-- The scores in "due" are timers: a group that moves leaves its timer alone, which is set anew here if it goes off too early.
--
-- KEYS[1] meta          hash
-- KEYS[2] due           zset
-- KEYS[3] first         zset
-- KEYS[4] outbox        zset
-- KEYS[5] group_prefix  prefix of the sidecar hashes (same hash tag)
-- KEYS[6] flush         set: groups an operator wants emitted, or "*"; emptied as it is done
-- ARGV[1] token         text
-- ARGV[2] fence         offset expected
-- ARGV[3] clock         partition clock, ms; never moves back
-- ARGV[4] quiet_ms      quiet period; "" = quiet groups stay open (a backlog is being merged)
-- ARGV[5] hold_ms       max hold
-- ARGV[6] all           "1" = every open group, due or not, as "flush"
-- ARGV[7] limit         groups sealed and timers found to be early, together at most
-- ARGV[8] partitions    partition count of the source, for the version of the record
--
-- Returns {"ok", clock, "1" if more is due, open groups, outbox records, oldest score, oldest opened, sealed records one after the
--         other}
--         or {"again"}: to be called again, see beyond.lua; or {"refused", "no-state" | "token" | "fence"}.
-- Cost    O(limit log n + names sealed), about 10 us a group or timer; some 10 ms where it ends at 1 MB of kept values.
local meta, due, first, outbox, prefix, flush = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local token, fence, clock = ARGV[1], ARGV[2], tonumber(ARGV[3])
local quiet_ms, hold_ms, all = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == '1'
local limit, partitions = tonumber(ARGV[7]), tonumber(ARGV[8])
local INFO, PAGE = '\255', 200
local call, pack, max = redis.call, cmsgpack.pack, math.max
-- What one script packs and returns.
local MOST_BYTES = 1000000
-- include beyond.lua

local state = call('HMGET', meta, 'token', 'fence', 'clock', 'epoch')
if not state[2] then return {'refused', 'no-state'} end
if state[1] ~= token then return {'refused', 'token'} end
if state[2] ~= fence then return {'refused', 'fence'} end
local fence_offset, epoch = tonumber(fence), state[4]
clock = math.max(clock, tonumber(state[3] or '0'))

if not drop_beyond(fence) then return {'again'} end -- perhaps as memory was short: nobody else would free it

-- ---- work out: reads only

local sealed, gone, gone_keys, sent, answered, later = {}, {}, {}, {}, {}, {}
local seen, taken, bytes, more, leaves = {}, 0, 0, false, false

local function info_of(packed)
  local info = packed and cmsgpack.unpack(packed)
  return info and info[1] == epoch and info or nil
end
-- From when the silence of a group is counted: from its score or its arrival, or from its timer if that is later.
local function silent_from(info, timer) return max(timer, info[4] + info[5] + (info[10] or 0)) end

-- The numbers of a group, nil where it is a leftover of an older state, and its names: {name, value, …}.
local function held(key)
  local content, at = call('HGETALL', key), 1
  while content[at] and content[at] ~= INFO do at = at + 2 end
  local packed, last = content[at + 1], #content
  content[at], content[at + 1] = content[last - 1], content[last]
  content[last - 1], content[last] = nil, nil
  return info_of(packed), content
end

-- Puts a group among those that leave, unless only its timer says that it is due. False once this script has done enough.
local function take(group, why, is_timer)
  if seen[group] then return true end
  if taken + #later / 2 >= limit or bytes > MOST_BYTES then
    more = true
    return false
  end
  seen[group] = true
  local key, info, names = prefix .. group, nil, nil
  -- One call costs less than two: everything is read where the group before has left.
  if leaves then info, names = held(key) else info = info_of(call('HGET', key, INFO)) end
  leaves = not (info and is_timer and silent_from(info, 0) + quiet_ms >= clock)
  if not leaves then
    later[#later + 1] = silent_from(info, 0)
    later[#later + 1] = group
    bytes = bytes + 20 * #(names or {})
    return true
  end
  taken = taken + 1
  if not info then
    gone[#gone + 1], gone_keys[#gone_keys + 1] = group, key -- its events are read again from Kafka's low mark
    answered[#answered + 1] = group
  elseif info[2] + info[3] <= fence_offset then
    if not names then info, names = held(key) end
    local first_offset, opened = info[2], info[4]
    local hold_due, quiet_due = opened + hold_ms, opened + info[5] + (quiet_ms or math.huge)
    if quiet_due < hold_due and hold_due <= clock then
      -- Silence may have been counted from the arrival, not from the score: see fold.lua.
      quiet_due = max(quiet_due, silent_from(info, tonumber(call('ZSCORE', due, group) or 0)) + quiet_ms)
    end
    local reason, due_ms = 'quiet', quiet_due
    if hold_due <= quiet_due then reason, due_ms = 'max_hold', hold_due end
    if why == 'flush' then reason, due_ms = 'flush', clock end
    local packed = pack({group, first_offset, first_offset + info[3], info[6], opened + info[7], opened + info[7] + info[8],
                         reason, due_ms, partitions, names})
    bytes = bytes + #packed
    sealed[#sealed + 1] = packed
    sent[#sent + 1] = first_offset
    sent[#sent + 1] = packed
    gone[#gone + 1], gone_keys[#gone_keys + 1] = group, key
    answered[#answered + 1] = group
  end
  return true
end

-- Visits groups for as long as there are any and they are wanted, in pages no larger than that.
local function each_of(page_at, visit)
  local at, most = 0, 0
  repeat
    most = math.min(PAGE, limit - taken + 1)
    local page = page_at(at, most)
    for i = 1, #page do
      if not visit(page[i]) then return end
    end
    at = at + most
  until #page < most
end

local wanted = call('SRANDMEMBER', flush, limit)
for i = 1, #wanted do
  if wanted[i] == '*' then all = true end
end
if all then
  each_of(function(at, most) return call('ZRANGE', first, at, at + most - 1) end,
          function(group) return take(group, 'flush') end)
else
  for i = 1, #wanted do take(wanted[i], 'flush') end
  -- The first offsets are in the order in which groups were opened, as the clock never goes back.
  each_of(function(at, most) return call('ZRANGE', first, at, at + most - 1) end,
          function(group)
            local info = info_of(call('HGET', prefix .. group, INFO))
            return not (info and info[4] + hold_ms > clock) and take(group, 'due')
          end)
  if quiet_ms then
    local till = '(' .. string.format('%.0f', clock - quiet_ms)
    each_of(function(at, most) return call('ZRANGEBYSCORE', due, '-inf', till, 'LIMIT', at, most) end,
            function(group) return take(group, 'due', true) end)
  end
end

-- ---- write

local function in_chunks(command, key, values)
  for from = 1, #values, 4000 do
    call(command, key, unpack(values, from, math.min(from + 3999, #values)))
  end
end
in_chunks('ZADD', outbox, sent)
for from = 1, #gone_keys, 4000 do call('UNLINK', unpack(gone_keys, from, math.min(from + 3999, #gone_keys))) end
in_chunks('ZREM', due, gone)
in_chunks('ZADD', due, later)
in_chunks('ZREM', first, gone)
if all and not more then
  call('DEL', flush)
elseif #wanted > 0 then
  in_chunks('SREM', flush, answered)
end
call('HSET', meta, 'clock', string.format('%.0f', clock))

-- The earliest timer is that of the oldest group once it says what the group says; nearly so where this script has done enough.
local oldest, opened = '', ''
for _ = 1, max(1, limit - taken - #later / 2) do
  local timer = call('ZRANGE', due, 0, 0, 'WITHSCORES')
  local info = timer[1] and info_of(call('HGET', prefix .. timer[1], INFO))
  local silent = info and silent_from(info, tonumber(timer[2])) or timer[2]
  oldest = silent and string.format('%.0f', silent) or ''
  if oldest == '' or tonumber(oldest) <= tonumber(timer[2]) then break end
  call('ZADD', due, oldest, timer[1])
end
local head = call('ZRANGE', first, 0, 0)
local info = head[1] and info_of(call('HGET', prefix .. head[1], INFO))
if info then opened = string.format('%.0f', info[4]) end
return {'ok', string.format('%.0f', clock), more and '1' or '0', call('ZCARD', first),
        call('ZCOUNT', outbox, '-inf', fence), oldest, opened, table.concat(sealed)}
