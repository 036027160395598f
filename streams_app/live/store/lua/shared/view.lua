-- What every script of a view's partition begins with: its keys, and what the indexes say of a page.
-- include fenced.lua
local pages, due, items_of, data_of = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local CHUNK = 4000 -- values in one call: Lua passes at most some 8 000
read_marks('seq', 'clock')

-- A command with many values, in several calls.
local function in_chunks(command, key, values)
  for from = 1, #values, CHUNK do call(command, key, unpack(values, from, math.min(from + CHUNK - 1, #values))) end
end

-- Makes the indexes say what a page holds now; it has its new version already.
local function settle(page)
  local oldest = call('ZRANGE', items_of .. page, 0, 0, 'WITHSCORES')
  if oldest[2] then
    call('ZADD', due, oldest[2], page)
  else
    call('ZREM', due, page)
    call('HDEL', pages, page)
  end
end
