#!lua flags=allow-oom
-- Removes pages, and items of other pages, for `streams-app forget`. If something is removed, the caller becomes the owner: (token, seq)
-- then names another state, and the worker claims the partition again.
--
-- KEYS   of the shard, see keys.py
-- token  text: of the caller, random
-- pages  array: names of pages
-- items  array: page, item, page, item ... in a row
--
-- Returns {"ok", number of removed pages, number of removed items}.
-- Cost    O(pages + items): about 10 us each; another thread frees the memory.
-- include view.lua

local removed_pages, removed_items, exists = 0, 0, {}
for _, page in ipairs(arg.pages) do
  exists[page] = call('EXISTS', items_of .. page, data_of .. page) > 0 or call('HEXISTS', pages, page) == 1
                 or call('ZSCORE', due, page) or call('ZSCORE', dropped, page)
  if exists[page] then removed_pages = removed_pages + 1 end
end
if removed_pages == 0 and not arg.items[1] then return {'ok', 0, 0} end
local seq = string.format('%.0f', tonumber(state.seq or '0') + 1)
if state.fence then call('HSET', meta, 'token', arg.token, 'seq', seq) end
for _, page in ipairs(arg.pages) do
  if exists[page] then
    removed_items = removed_items + call('ZCARD', items_of .. page)
    call('UNLINK', items_of .. page, data_of .. page)
    call('ZREM', due, page)
    call('ZREM', dropped, page)
    call('HDEL', pages, page)
  end
end
for i = 1, #arg.items, 2 do
  local page, item = arg.items[i], arg.items[i + 1]
  if call('ZREM', items_of .. page, item) + call('HDEL', data_of .. page, item) > 0 then
    removed_items = removed_items + 1
    call('HSET', pages, page, seq)
    settle(page)
  end
end
return {'ok', removed_pages, removed_items}
