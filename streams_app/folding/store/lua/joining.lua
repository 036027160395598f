-- What becomes of an open group at a run or a session: it goes on, or ends. Put into other scripts in the place of a line that names it;
-- they say "pack", "epoch", "quiet_ms" (nil = gaps close nothing), "hold_ms", "max_events", "max_changed", "partitions", "INFO" and
-- "silent_from".

-- Packed numbers of a group, its last offset and its last score.
local function numbers_of(packed)
  local i = cmsgpack.unpack(packed)
  return i, i[2] + i[3], i[4] + i[5]
end
-- Whether a group with this last score ends before an event.
local function is_over(i, score, at_ms) return at_ms > score + quiet_ms or at_ms >= i[4] + hold_ms end
-- From when silence is counted, as time since the score; nil where it is the score. It never moves back.
local function since_score(score, before)
  local silent = math.max(silent_from, before)
  return silent > score and silent - score or nil
end
-- The numbers of a group with another run, packed; nil where a bound perhaps closes the group.
local function joined(i, stored_score, run, last, score)
  local since, events, bound = i[4], i[6] + run[6], i[9] + run[9]
  if score - since >= hold_ms or bound > max_changed or (max_events > 0 and events >= max_events) then return nil end
  local low = math.min(since + i[7], run[4] + run[7])
  local high = math.max(since + i[7] + i[8], run[4] + run[7] + run[8])
  return pack({epoch, i[2], last - i[2], since, score - since, events, low - since, high - low, bound,
               since_score(score, stored_score + (i[10] or 0))})
end
-- Packed numbers of a group, its names, and both as Redis says them.
local names_read = 0
local function stored(key)
  local content, packed, names = redis.call('HGETALL', key), nil, {}
  for j = 1, #content, 2 do
    if content[j] == INFO then
      packed = content[j + 1]
    else
      names[content[j]] = content[j + 1]
    end
  end
  names_read = names_read + #content / 2
  return packed, names, content
end
-- The record of a group that ended with this score.
local function record_of(group, i, last, score, events, low, high, names)
  local hold_due, due_ms, reason = i[4] + hold_ms, score + quiet_ms, 'quiet'
  if hold_due <= due_ms then due_ms, reason = hold_due, 'max_hold' end
  return pack({group, i[2], last, events, low, high, reason, due_ms, partitions, names})
end
-- How a session that has ended within the range ends the open fold of its group, which "first" says was opened at that offset: "apart"
-- (it had ended before) or "together". Then the numbers of the group, its record, and its sidecar as Redis says it. All but that are
-- nil where it is not of this state or a bound perhaps closes it.
local function ending_at(group, opened_at, packed_entry, first_score, last_score)
  local packed, names, content = stored(prefix .. group)
  if not packed then return nil, nil, nil, content end
  local i, last, score = numbers_of(packed)
  local entry = cmsgpack.unpack(packed_entry)
  if i[1] ~= epoch or i[2] ~= opened_at or entry[2] <= last then return nil, nil, nil, content end
  local low, high = i[4] + i[7], i[4] + i[7] + i[8]
  if is_over(i, score, first_score) then return 'apart', i, record_of(group, i, last, score, i[6], low, high, names), content end
  local events, n = i[6] + entry[4], i[9]
  for name, value in pairs(entry[10]) do
    names[name] = value
    n = n + 1
  end
  if last_score - i[4] >= hold_ms or n > max_changed or (max_events > 0 and events >= max_events) then return nil, nil, nil, content end
  local record = record_of(group, i, entry[3], last_score, events, math.min(low, entry[5]), math.max(high, entry[6]), names)
  return 'together', i, record, content
end
