#!lua flags=allow-oom,no-writes
-- Reads the pages of a view's shard whose version differs from the one that a hub has.
--
-- KEYS      of the shard, see keys.py
-- known     text: token under which the versions were read; "" = the hub has no versions
-- wanted    array: names of the requested pages
-- versions  map: the version that the hub has of each page; pages that were empty are left out
-- show      number: how many of the newest items are returned of each page
-- has_data  boolean: whether items have payloads
--
-- Versions under different tokens cannot be compared. If the token differs, all requested pages with items are returned; those that are
-- not returned are empty.
--
-- Returns {"ok", token, seq, fence, clock, reading, whole_ms, partitions, and for each page that differs: its index in wanted
--         from 0 on, version, number of items, array of item and time newest first, array of payloads, whether it has dropped items
--         that would not have expired} or {"none"} if there is no state.
-- Cost    O(pages wanted + items returned): about 0.5 us a page, 4 us a page that differs, and 1 us each of its items.
-- include view.lua

if not (state.fence and state.seq and state.clock) then return {'none'} end
read_marks('reading', 'whole_ms', 'partitions')
local wanted, hub_versions = arg.wanted, state.token == arg.known and arg.versions or {}

-- Versions of the wanted pages. If the shard has few pages, all are read, because Redis searches a small hash linearly for each field.
local stored_versions = {}
if call('HLEN', pages) <= #wanted / 2 then
  local all, by_page = call('HGETALL', pages), {}
  for k = 1, #all, 2 do by_page[all[k]] = all[k + 1] end
  for index, page in ipairs(wanted) do stored_versions[index] = by_page[page] or false end
else
  for from = 1, #wanted, CHUNK do
    local versions = call('HMGET', pages, unpack(wanted, from, math.min(from + CHUNK - 1, #wanted)))
    for i = 1, #versions do stored_versions[from + i - 1] = versions[i] end
  end
end

local function newest(page)
  if arg.show <= 0 then return {}, {} end
  local items, names = call('ZRANGE', items_of .. page, 0, arg.show - 1, 'REV', 'WITHSCORES'), {}
  if not arg.has_data or #items == 0 then return items, names end
  for k = 1, #items, 2 do names[#names + 1] = items[k] end
  return items, call('HMGET', data_of .. page, unpack(names))
end

local reply = {'ok', state.token, state.seq, state.fence, state.clock, state.reading or '', state.whole_ms or '0', state.partitions or '0'}
local size = #reply
for index, page in ipairs(wanted) do
  local version = stored_versions[index] or ''
  if version ~= (hub_versions[page] or '') then
    local items, payloads = newest(page)
    reply[size + 1], reply[size + 2], reply[size + 3] = index - 1, version, call('ZCARD', items_of .. page)
    reply[size + 4], reply[size + 5], reply[size + 6] = items, payloads, call('ZSCORE', dropped, page) and 1 or 0
    size = size + 6
  end
end
return reply
