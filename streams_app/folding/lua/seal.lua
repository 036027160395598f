#!lua flags=allow-oom
-- Moves due groups out of the open state into the outbox, each with its fold id and what it holds.
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
-- ARGV[7] limit         groups sealed at most
-- ARGV[8] partitions    partition count of the source, for the version of the record
--
-- Returns {"ok", clock, "1" if more is due, open groups, outbox records, oldest score, oldest opened, sealed records one after the
--         other}
--         or {"refused", "no-state" | "token" | "fence"}.
-- Cost    O(limit log n + names sealed), about 15 us a group; some 40 ms where it ends at 4 MB of kept values.
local meta, due, first, outbox, prefix, flush = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local token, fence, clock = ARGV[1], ARGV[2], tonumber(ARGV[3])
local quiet_ms, hold_ms, all = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == '1'
local limit, partitions = tonumber(ARGV[7]), tonumber(ARGV[8])
local INFO = '\255'

local state = redis.call('HMGET', meta, 'token', 'fence', 'clock', 'epoch')
if not state[2] then return {'refused', 'no-state'} end
if state[1] ~= token then return {'refused', 'token'} end
if state[2] ~= fence then return {'refused', 'fence'} end
local fence_offset, epoch = tonumber(fence), state[4]
clock = math.max(clock, tonumber(state[3] or '0'))

-- Staged by an attempt to fold that was given up, perhaps as memory was short: nobody else would free it.
redis.call('ZREMRANGEBYSCORE', outbox, '(' .. fence, '+inf')
local found, seen = {}, {}
local function consider(groups, why)
  for i = 1, #groups do
    if not seen[groups[i]] and #found <= limit then
      seen[groups[i]] = true
      found[#found + 1] = {groups[i], why}
    end
  end
end
-- One more than the limit is looked for: it tells whether the caller should come back at once.
local wanted = redis.call('SRANDMEMBER', flush, limit)
for i = 1, #wanted do
  if wanted[i] == '*' then all = true end
end
if all then
  consider(redis.call('ZRANGE', first, 0, limit), 'flush')
else
  consider(wanted, 'flush')
  -- The first offsets are in the order in which groups were opened, as the clock never goes back.
  local page, at = 200, 0
  while #found <= limit do
    local groups = redis.call('ZRANGE', first, at, at + page - 1)
    local held = {}
    for i = 1, #groups do
      local packed = redis.call('HGET', prefix .. groups[i], INFO)
      local info = packed and cmsgpack.unpack(packed)
      if info and info[4] + hold_ms > clock then break end
      held[#held + 1] = groups[i]
    end
    consider(held, 'due')
    if #held < page then break end
    at = at + page
  end
  if quiet_ms then
    consider(redis.call('ZRANGEBYSCORE', due, '-inf', '(' .. string.format('%.0f', clock - quiet_ms), 'LIMIT', 0, limit + 1),
             'due')
  end
end

-- Kept values may be large: what one script packs and returns is bounded, too, or it would hold Redis for seconds.
local most_bytes, bytes, more = 4000000, 0, #found > limit
local sealed, gone, sent, answered = {}, {}, {}, {}
for i = 1, math.min(#found, limit) do
  if bytes > most_bytes then
    more = true
    break
  end
  local group, why = found[i][1], found[i][2]
  local key = prefix .. group
  local content = redis.call('HGETALL', key)
  local info, names = nil, {}
  for j = 1, #content, 2 do
    if content[j] == INFO then
      info = cmsgpack.unpack(content[j + 1])
    else
      names[content[j]] = content[j + 1]
    end
  end
  if not info or info[1] ~= epoch then
    gone[#gone + 1] = group -- a leftover of an older state: its events are read again from Kafka's low mark
    answered[#answered + 1] = group
  elseif info[2] + info[3] <= fence_offset then
    local opened, score = info[4], info[4] + info[5]
    local hold_due, quiet_due = opened + hold_ms, score + (quiet_ms or math.huge)
    if quiet_due < hold_due and hold_due <= clock then
      -- Silence may have been counted from the arrival, not from the score: see fold.lua.
      quiet_due = math.max(quiet_due, tonumber(redis.call('ZSCORE', due, group) or score) + quiet_ms)
    end
    local reason, due_ms = 'quiet', quiet_due
    if hold_due <= quiet_due then reason, due_ms = 'max_hold', hold_due end
    if why == 'flush' then reason, due_ms = 'flush', clock end
    local packed = cmsgpack.pack({group, info[2], info[2] + info[3], info[6], opened + info[7], opened + info[7] + info[8],
                                  reason, due_ms, partitions, names})
    bytes = bytes + #packed
    sealed[#sealed + 1] = packed
    sent[#sent + 1] = info[2]
    sent[#sent + 1] = packed
    gone[#gone + 1] = group
    answered[#answered + 1] = group
  end
end

local function in_chunks(command, key, values)
  for from = 1, #values, 4000 do
    redis.call(command, key, unpack(values, from, math.min(from + 3999, #values)))
  end
end
in_chunks('ZADD', outbox, sent)
for from = 1, #gone, 4000 do
  local keys = {}
  for i = from, math.min(from + 3999, #gone) do keys[#keys + 1] = prefix .. gone[i] end
  redis.call('UNLINK', unpack(keys))
end
in_chunks('ZREM', due, gone)
in_chunks('ZREM', first, gone)
if all and not more then
  redis.call('DEL', flush)
elseif #wanted > 0 then
  in_chunks('SREM', flush, answered)
end
redis.call('HSET', meta, 'clock', string.format('%.0f', clock))

local oldest = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
local head = redis.call('ZRANGE', first, 0, 0)
local opened = ''
if head[1] then
  local packed = redis.call('HGET', prefix .. head[1], INFO)
  opened = packed and string.format('%.0f', cmsgpack.unpack(packed)[4]) or ''
end
return {'ok', string.format('%.0f', clock), more and '1' or '0', redis.call('ZCARD', first),
        redis.call('ZCOUNT', outbox, '-inf', fence), oldest[2] or '', opened, table.concat(sealed)}
