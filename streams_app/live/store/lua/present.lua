#!lua
-- Writes the browser tabs of a hub that have pages open, and counts the tabs of all hubs.
--
-- KEYS       of the shard, here the whole view, see keys.py
-- marker     text: random; stored as the marker if there is none
-- now_ms     number: current time by the clock of Redis
-- keep_ms    number: keys expire after this time unless a hub writes them
-- named      number: maximum number of tabs to return for each page
-- pages      array: for each page its name, an array with expiry (ms) and id of each open tab, and an array with the expiry that the hub
--            wrote last, the new expiry and the id of each closed tab
--
-- A closed tab gets its new expiry, unless another hub has written a different one meanwhile, because the tab is open at that hub.
--
-- Returns {"ok", marker, ...}, followed by two items for each page: the number of its tabs, and an array of the requested ids of tabs.
-- Cost    O(pages + tabs written): about 3 us each.

local arg = cmsgpack.unpack(ARGV[1])
local call = redis.call
local marker, here_of = KEYS[1], KEYS[2]
local stored_marker = call('GET', marker) or arg.marker
call('SET', marker, stored_marker, 'PX', arg.keep_ms)
local reply = {'ok', stored_marker}
for _, change in ipairs(arg.pages) do
  local here, open, closed = here_of .. change[1], change[2], change[3]
  for i = 1, #open, 2 do call('ZADD', here, open[i], open[i + 1]) end
  for i = 1, #closed, 3 do
    local score = call('ZSCORE', here, closed[i + 2])
    if score and tonumber(score) == closed[i] then call('ZADD', here, closed[i + 1], closed[i + 2]) end
  end
  call('ZREMRANGEBYSCORE', here, '-inf', arg.now_ms)
  call('PEXPIRE', here, arg.keep_ms)
  reply[#reply + 1] = call('ZCARD', here)
  reply[#reply + 1] = arg.named > 0 and call('ZRANGE', here, 0, arg.named - 1, 'REV') or {}
end
return reply
