-- What the scripts share that know events by their identities. From KEYS[3] on stand the keys of identities, the hour that is now first,
-- and then as many in which earlier versions have kept ids without their source.
local SOURCE_CHARACTERS = 16 -- an identity begins with so many of its source, see events/headers.py; the id follows
local hours = (#KEYS - 2) / 2
local has_former = hours > 0 and call('EXISTS', unpack(KEYS, 3 + hours)) > 0

-- The offset at which an identity was seen first, nil if it never was. An id that was kept without its source is that of any source: worse
-- to call a function for the first event alone than a second time for the same one.
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
