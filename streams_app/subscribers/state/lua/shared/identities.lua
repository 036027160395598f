-- Deduplication by identity, for several scripts. From KEYS[3] on there are the keys of identities, that of the current hour first, and
-- then as many keys in which earlier versions have stored ids without their source.
local SOURCE_CHARACTERS = 16 -- length of the source with which an identity begins, see events/headers.py; the id follows
local hours = (#KEYS - 2) / 2
local has_former = hours > 0 and call('EXISTS', unpack(KEYS, 3 + hours)) > 0

-- Returns the offset at which an identity was seen first, nil if it never was. An id without a source matches any source: worse to run an
-- event twice than to skip one with the id of another.
local function first_seen(identity)
  for k = 3, 2 + hours do
    local known = call('HGET', KEYS[k], identity)
    if known then return known end
  end
  if not has_former then return nil end
  local id = string.sub(identity, SOURCE_CHARACTERS + 1)
  for k = 3 + hours, #KEYS do
    local known = call('HGET', KEYS[k], id)
    if known then return known end
  end
end
