-- The beginning of every script of a view's partition: its keys, and functions that update its indexes.
-- include fenced.lua
local pages, due, items_of, data_of, dropped = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local CHUNK = 4000 -- maximum number of values in one call; unpack() fails above some 8 000
read_marks('seq', 'clock')

-- Calls a command with many values, split into several calls.
local function in_chunks(command, key, values)
  for from = 1, #values, CHUNK do call(command, key, unpack(values, from, math.min(from + CHUNK - 1, #values))) end
end

-- Updates the indexes of a page after a change; its new version is already stored.
local function settle(page)
  local oldest = call('ZRANGE', items_of .. page, 0, 0, 'WITHSCORES')
  if oldest[2] then
    call('ZADD', due, oldest[2], page)
  else
    call('ZREM', due, page)
    if not call('ZSCORE', dropped, page) then call('HDEL', pages, page) end
  end
end
