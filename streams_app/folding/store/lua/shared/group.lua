-- An open group as its sidecar holds it: a hash of its changed names and, in one field, its numbers. The numbers are packed in the
-- order of NUMBERS in codec.py, times and offsets as differences, which take less room. A run of events that Redis has not seen yet is
-- written in the same way, as the group that it would open.
local INFO = '\255' -- the field of the numbers: no name, as it is not UTF-8

local function numbers_of(packed)
  local n = unpacked(packed)
  local opened = n[4]
  local score = opened + n[5]
  return {epoch = n[1], first = n[2], last = n[2] + n[3], opened = opened, score = score, events = n[6],
          low = opened + n[7], high = opened + n[7] + n[8], names = n[9], silent = score + (n[10] or 0), shorter = n[11] or 0}
end

local function packed_of(g)
  local silence = math.max(0, g.silent - g.score)
  return pack({state.epoch, g.first, g.last - g.first, g.opened, g.score - g.opened, g.events,
               g.low - g.opened, g.high - g.low, g.names, (silence > 0 or g.shorter > 0) and silence or nil,
               g.shorter > 0 and g.shorter or nil})
end

-- The numbers of a group that is open; nil where what is stored is a leftover of an older state.
local function open_group(key, opened_at)
  local packed = call('HGET', key, INFO)
  local g = packed and numbers_of(packed)
  return g and g.epoch == state.epoch and g.first == opened_at and g or nil
end

-- What leaves with a group: one entry of the outbox. "names" is a map, or name, value, name ... in a row.
local function record_of(group, g, reason, due_ms, names)
  return pack({group, g.first, g.last, g.events, g.low, g.high, reason, due_ms, arg.partitions, names})
end
