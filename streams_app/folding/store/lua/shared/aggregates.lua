-- Combines two values of one name, the earlier one first. core/aggregates.py describes the encoding and has the same function in Python;
-- a test compares the two.
-- include text.lua
local ARRAYS = 128 -- a value whose first byte is at least this is not JSON

-- Returns whether one maximum or minimum is above another. Compares rank, high part, low part, then the rest of long numbers.
local function is_above(a, b)
  if a[2] ~= b[2] then return a[2] > b[2] end
  if a[3] ~= b[3] then
    if a[2] == 1 then return is_after(a[3], b[3]) end
    return a[3] > b[3]
  end
  if a[4] ~= b[4] then return a[4] > b[4] end
  local above, below = a[6] or 0, b[6] or 0
  if above ~= below then return above > below end
  return above ~= 0 and is_after(a[7], b[7])
end

local function combined(stored, value)
  if value:byte(1) < ARRAYS then return value end
  local a, b = unpacked(stored), unpacked(value)
  if a[1] == '^' then return stored end
  if a[1] == '>' then return is_above(a, b) and stored or value end
  if a[1] == '<' then return is_above(b, a) and stored or value end
  local at = {}
  for i = 3, #a, 2 do at[a[i]] = i + 1 end
  for i = 3, #b, 2 do
    local place = at[b[i]]
    if place then a[place] = a[place] + b[i + 1] else a[#a + 1], a[#a + 2] = b[i], b[i + 1] end
  end
  a[2] = math.max(a[2], b[2])
  return pack(a)
end
