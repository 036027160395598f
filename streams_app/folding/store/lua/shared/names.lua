-- The changed names of the groups that fold.lua changes, and of the runs that it adds to them. Adds to its "work".

-- Returns the numbers of a run. If it is packed, its packed names become run.names.
local function numbers_of_run(run)
  if #run > 3 then return (numbers_of(run[4])) end
  if not run.numbers then run.numbers, run.names = parts_of(run[3]) end
  return run.numbers
end

-- Returns a run in the form of a group that is a hash.
local function as_hash(run)
  if not run.names then return run end
  local found = {run[1], run[2], INFO, ''}
  for name, value in pairs(unpacked(run.names)) do found[#found + 1], found[#found + 2] = name, value end
  return found
end

-- Adds the names of a run to the loaded names of its group.
local function join(plan, run)
  local names = plan.names
  for n = 5, #run, 2 do
    local name, value = run[n], run[n + 1]
    local former = names[name]
    if former == nil then plan.count = plan.count + 1 end
    if former and aggregates then
      value = combined(former, value)
      work = work + COMBINES
    end
    names[name] = value
  end
end

-- All names of the group of a plan: the stored ones and those that the range has added. They are read once, and updated by join.
-- plan.packed has the same names packed, or nil; only a group that is packed has it.
local function names_of(plan)
  if plan.names then return plan.names end
  local names, count = {}, 0
  if plan.packed then
    names = unpacked(plan.packed)
    for _ in pairs(names) do count = count + 1 end
    plan.packed = nil
  elseif plan.is_stored then
    local content = call('HGETALL', plan.key)
    for j = 1, #content, 2 do
      if content[j] ~= INFO then names[content[j]], count = content[j + 1], count + 1 end
    end
  end
  plan.names, plan.count = names, count
  for _, run in ipairs(plan.runs) do join(plan, run) end
  work = work + NAME * plan.count
  return names
end

-- Returns the packed names of a group with those of a run, and their number. Few sets of names occur in many groups.
local joined = {}
local function joined_with(packed, more)
  local of_group = joined[packed] or {}
  joined[packed] = of_group
  if not of_group[more] then
    local names, count, is_new = unpacked(packed), 0, false
    for name, value in pairs(unpacked(more)) do
      is_new = is_new or names[name] ~= value
      names[name] = value
    end
    for _ in pairs(names) do count = count + 1 end
    of_group[more] = {is_new and pack(names) or packed, count}
    work = work + NAME * 2 * count
  end
  return unpack(of_group[more])
end

-- Adds a run to the names of a packed group.
local function join_packed(plan, run)
  if aggregates or plan.names or not run.names then
    names_of(plan)
    run = as_hash(run)
    join(plan, run)
    plan.open.names = plan.count
    work = work + NAME * #run / 2
  elseif not plan.packed then
    plan.packed = run.names
  elseif run.names ~= plan.packed then
    plan.packed, plan.open.names = joined_with(plan.packed, run.names)
  end
end

-- The number of names that the group would have with this run. The counter of a group is only an upper bound, so that a usual update
-- need not read the names.
local function names_with(plan, run)
  local names = names_of(plan)
  local count = plan.count
  run = as_hash(run)
  for n = 5, #run, 2 do
    if names[run[n]] == nil then count = count + 1 end
  end
  work = work + NAME * #run / 2
  return count
end
