#!lua flags=allow-oom
-- Removes items that are due; moves the clock when no more items are due. A page no longer counts as incomplete when all items that
-- it has dropped would have expired.
--
-- KEYS       of the shard, see keys.py
-- token      text
-- fence      text: the expected current fence
-- seq        text: number of this attempt, as in apply.lua
-- cutoff_ms  number: items of this time or older are due
-- clock      text: new clock, ms; an older one is ignored. "" = the clock stays, because unread events may prolong items
-- limit      number: maximum number of removed items and of pages that are complete again
--
-- Returns {"ok", number of removed items, whether more are due, number of pages} or {"refused", "no-state" | "token" | "fence"}. A
--         call that is repeated after a lost reply removes nothing and reports that more items may be due.
-- Cost    O(items removed): about 3 us each.
-- include view.lua

local refused = refusal()
if refused then return refused end
if state.seq == arg.seq then return {'ok', 0, 1, call('HLEN', pages)} end
local remaining, expired = arg.limit, 0
local function set_version(page) call('HSET', pages, page, arg.seq) end
local complete = call('ZRANGEBYSCORE', dropped, '-inf', arg.cutoff_ms, 'LIMIT', 0, remaining)
for _, page in ipairs(complete) do
  set_version(page)
  call('ZREM', dropped, page)
  settle(page)
end
remaining = remaining - #complete
local due_pages = call('ZRANGEBYSCORE', due, '-inf', arg.cutoff_ms, 'LIMIT', 0, remaining)
for _, page in ipairs(due_pages) do
  if remaining <= 0 then break end
  local items = items_of .. page
  local due_items = call('ZRANGEBYSCORE', items, '-inf', arg.cutoff_ms, 'LIMIT', 0, remaining)
  set_version(page)
  in_chunks('ZREM', items, due_items)
  in_chunks('HDEL', data_of .. page, due_items)
  settle(page)
  expired = expired + #due_items
  remaining = remaining - math.max(1, #due_items)
end
if #due_pages + #complete > 0 then call('HSET', meta, 'seq', arg.seq) end
local function has_due(key) return #call('ZRANGEBYSCORE', key, '-inf', arg.cutoff_ms, 'LIMIT', 0, 1) > 0 end
local is_more = has_due(due) or has_due(dropped)
if not is_more and arg.clock ~= '' and tonumber(arg.clock) > tonumber(state.clock) then call('HSET', meta, 'clock', arg.clock) end
return {'ok', expired, is_more and 1 or 0, call('HLEN', pages)}
