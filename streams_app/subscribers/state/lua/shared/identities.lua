-- Deduplication by identity, included by several scripts. From KEYS[3] on come the keys of identities, with that of the current hour
-- first, then as many keys in which earlier versions have stored ids without their source.
local SOURCE_CHARACTERS = 16 -- length of the source with which an identity begins, see events/headers.py; the id follows
local hours = (#KEYS - 2) / 2
local has_former = hours > 0 and call('EXISTS', unpack(KEYS, 3 + hours)) > 0

-- Returns the offset of the first event with an identity; nil if there was none. A stored id without a source matches any
-- source, because running an event twice is worse than skipping another event that has the same id.
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
