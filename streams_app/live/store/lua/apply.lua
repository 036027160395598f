#!lua
-- Applies a batch of the log to the shard of a view, and moves the fence to the end of the batch.
--
-- KEYS       of the shard, see keys.py
-- token      text
-- fence      text: the expected current fence; the batch begins after it
-- to         text: last offset of the batch; the fence afterwards
-- seq        text: number of this attempt, higher than those of all attempts before
-- changes    array: for each page its name, array of removed items, array of time (ms) and item of each put, array of the payloads of puts
-- has_data   boolean: whether puts have payloads
-- expiry_ms  number: a put whose time + expiry_ms is not after the stored clock is late and changes nothing
-- keep       number: maximum number of items kept of a page; the oldest ones beyond it are dropped
-- reading    text: as in claim.lua
-- whole_ms   text: as in claim.lua
-- log        text: fingerprints of applied records
--
-- In each page, removals are applied before puts. A put never moves the time of an item back; the payload of the newest put stays.
--
-- Returns {"ok", number of late puts, number of pages}; {"already", 0, number of pages} if an earlier attempt has applied the batch;
--         or {"refused", "no-state" | "token" | "fence"}.
-- Cost    O(items changed): about 3 us an item and 8 us a page.
-- include view.lua

if state.token == arg.token and state.fence == arg.to then return {'already', 0, call('HLEN', pages)} end
local refused = refusal()
if refused then return refused end
local cutoff, late = tonumber(state.clock) - arg.expiry_ms, 0

local function put_counted(items, puts)
  local new_items = {'GT'}
  for i = 1, #puts, 2 do
    if puts[i] > cutoff then
      new_items[#new_items + 1], new_items[#new_items + 2] = puts[i], puts[i + 1]
    else
      late = late + 1
    end
  end
  if #new_items > 1 then call('ZADD', items, unpack(new_items)) end
end

local function put_listed(items, data, puts, payloads)
  for i = 1, #puts, 2 do
    local time, item = puts[i], puts[i + 1]
    local stored_ms = call('ZSCORE', items, item)
    if time <= cutoff then
      late = late + 1
    elseif not stored_ms or tonumber(stored_ms) <= time then
      call('ZADD', items, time, item)
      call('HSET', data, item, payloads[(i + 1) / 2])
    end
  end
end

local function trim(page, items, data)
  local excess = call('ZCARD', items) - arg.keep
  if excess <= 0 then return end
  call('ZADD', dropped, 'GT', call('ZRANGE', items, excess - 1, excess - 1, 'WITHSCORES')[2], page)
  local oldest = call('ZPOPMIN', items, excess)
  for i = 1, arg.has_data and #oldest or 0, 2 do call('HDEL', data, oldest[i]) end
end

for _, change in ipairs(arg.changes) do
  local page, removed, puts, payloads = change[1], change[2], change[3], change[4]
  local items, data = items_of .. page, data_of .. page
  -- The entry in pages comes first: a later claim that drops this state finds its pages there.
  call('HSET', pages, page, arg.seq)
  in_chunks('ZREM', items, removed)
  if arg.has_data then
    in_chunks('HDEL', data, removed)
    put_listed(items, data, puts, payloads)
  else
    put_counted(items, puts)
  end
  trim(page, items, data)
  settle(page)
end
if #arg.changes > 0 then call('HSET', meta, 'seq', arg.seq) end
-- The fence comes last: a script that was interrupted runs again from the same fence.
call('HSET', meta, 'reading', arg.reading, 'whole_ms', arg.whole_ms, 'log', arg.log, 'fence', arg.to)
return {'ok', late, call('HLEN', pages)}
