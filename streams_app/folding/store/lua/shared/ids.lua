-- The ids of the events of the groups that fold.lua changes, see "dedupe_by". Adds to its "work".

-- Those ids of a run that Redis has of its group, with their offsets.
local function stored_ids(plan, ids)
  local found = {}
  for from = 2, #ids, PAGE do
    local asked = {}
    for n = from, math.min(from + PAGE - 1, #ids), 2 do asked[#asked + 1] = ids[n] end
    local offsets = call('HMGET', ids_prefix .. plan.group, unpack(asked))
    for n = 1, #asked do found[asked[n]] = offsets[n] and tonumber(offsets[n]) or nil end
  end
  work = work + NAME * #ids
  return found
end

-- Whether an event of a run has an id that another event of its group has. The offset of the event itself may be stored already, by a
-- script that failed before it wrote the group.
local function has_duplicates(plan, ids)
  local stored, run = plan.is_stored and stored_ids(plan, ids) or {}, {}
  for n = 2, #ids, 2 do
    local id, offset = ids[n], ids[n + 1]
    local known = run[id] or plan.ids[id] or stored[id]
    if known and known ~= offset then return true end
    run[id] = offset
  end
  return false
end

-- Adds the ids of a run to its group.
local function add_ids(plan, ids)
  for n = 2, #ids, 2 do
    plan.ids[ids[n]] = ids[n + 1]
    plan.new_ids[#plan.new_ids + 1], plan.new_ids[#plan.new_ids + 2] = ids[n], ids[n + 1]
  end
  plan.open.ids = plan.open.ids + (#ids - 1) / 2
  plan.open.duplicates = plan.open.duplicates + ids[1]
  plan.is_counted = true
end
