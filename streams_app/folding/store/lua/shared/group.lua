-- An open group as stored, in one of two forms. A packed group is a field of the hash "open": its numbers and a map of its changed names,
-- one after the other. Any other group is a hash of its own, with its changed names and, in one field, its numbers: a group with many
-- names, because it costs less to add one more to a hash, with kept events or ids, or that older versions may read. The numbers are
-- packed in the order of StoredGroup in codec.py, with times and offsets as differences, which need less memory. A run of events in a
-- request has the same encoding, as the group that it would open.
local INFO = '\255' -- the field of the numbers; it is not UTF-8, so no changed name is equal to it
local PACKED_BYTES = 400 -- maximum size of the packed names of a packed group, as in codec.py

local function numbers_from(n, at)
  local opened = n[at + 2]
  local score, low = opened + n[at + 3], opened + n[at + 5]
  return {first = n[at], last = n[at] + n[at + 1], opened = opened, score = score, events = n[at + 4], low = low, high = low + n[at + 6],
          names = n[at + 7], silent = score + (n[at + 8] or 0), shorter = n[at + 9] or 0, ids = n[at + 10] or 0,
          duplicates = n[at + 11] or 0}
end

-- Returns the numbers of a group that is a hash, and the epoch of its state.
local function numbers_of(packed)
  local n = unpacked(packed)
  return numbers_from(n, 2), n[1]
end

-- Returns the numbers of a packed group, and its packed names.
local function parts_of(packed)
  local names_at, n = cmsgpack.unpack_one(packed, 0)
  return numbers_from(n, 1), packed:sub(names_at + 1)
end

-- Packs the numbers of a group, with the given epoch if it is a hash, otherwise without.
local function packed_of(g, epoch)
  local silence, has_ids = math.max(0, g.silent - g.score), g.ids > 0 or g.duplicates > 0
  local is_short = g.shorter > 0 or has_ids
  local n = {g.first, g.last - g.first, g.opened, g.score - g.opened, g.events,
             g.low - g.opened, g.high - g.low, g.names, (silence > 0 or is_short) and silence or nil,
             is_short and g.shorter or nil, has_ids and g.ids or nil, has_ids and g.duplicates or nil}
  if epoch then table.insert(n, 1, epoch) end
  return pack(n)
end

-- Returns the number of names in a packed map.
local function map_size(packed)
  local tag = packed:byte(1)
  if tag < 144 then return tag - 128 end
  return (struct.unpack(tag == 222 and '>I2' or '>I4', packed, 2))
end

-- Returns the numbers of a group that is a hash; nil if there is none, or it belongs to an older state.
local function hash_group(group)
  local packed = call('HGET', prefix .. group, INFO)
  if not packed then return nil end
  local g, epoch = numbers_of(packed)
  return epoch == state.epoch and g or nil
end

-- Returns the numbers of an open group, and its packed names if it is packed; nil if it is not open. "packed" is its field of "open".
local function group_of(group, packed)
  if packed then return parts_of(packed) end
  return hash_group(group)
end
