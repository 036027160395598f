-- The timers of packed groups. Many share one member of "timers", a batch, whose score is its lowest timer: a member for each would take
-- twenty times the memory. A batch is an array: for each group its timer and its first offset, in the order of the timers; both are
-- differences from those of the group before, which are small. The group is the one that has this first offset in "first". If there is
-- none, it is closed, and its timer is removed when its time has come.
local BATCH = 64 -- maximum number of timers in a batch, as in codec.py

-- Adds timers: {{timer, first offset}, ...}. Returns a set of the batches.
local function add_timers(entries)
  table.sort(entries, function(a, b) return a[1] < b[1] end)
  local scored, batches = {}, {}
  for from = 1, #entries, BATCH do
    local batch, timer, offset = {}, 0, 0
    for i = from, math.min(from + BATCH - 1, #entries) do
      local entry = entries[i]
      batch[#batch + 1], batch[#batch + 2] = entry[1] - timer, entry[2] - offset
      timer, offset = entry[1], entry[2]
    end
    local packed = pack(batch)
    scored[#scored + 1], scored[#scored + 2] = entries[from][1], packed
    batches[packed] = true
  end
  in_pages('ZADD', timers, scored)
  return batches
end

-- Adds timers in place of some batches, one of which may be equal to a new one. If the script fails half-way, no timer is lost.
local function replace_batches(replaced, entries)
  local batches, removed = add_timers(entries), {}
  for _, batch in ipairs(replaced) do
    if not batches[batch] then removed[#removed + 1] = batch end
  end
  in_pages('ZREM', timers, removed)
end

-- Returns the timers of a batch, as add_timers takes them.
local function entries_of(batch)
  local found, values, timer, offset = {}, unpacked(batch), 0, 0
  for i = 1, #values, 2 do
    timer, offset = timer + values[i], offset + values[i + 1]
    found[#found + 1] = {timer, offset}
  end
  return found
end
