#!lua
-- Says which browser tabs of a hub have pages open, and counts those of all hubs.
--
-- KEYS       of the shard, which is a whole view here, see keys.py
-- marker     text: random; becomes the marker where there is none
-- now_ms     number: wall clock
-- keep_ms    number: keys that nobody writes are gone after so long
-- named      number: tabs that are returned of a page, at most
-- pages      array: of each page its name, array of until (ms) and tab of those that are open, array of the until that the hub wrote
--            last, another until and the tab of each that has closed
--
-- A tab that has closed lapses at its new until, unless somebody has written another one since: it is open elsewhere.
--
-- Returns {"ok", marker, and of each page the number of its tabs and an array of those that are returned, …}.
-- Cost    O(pages + tabs written): about 3 us each.

local arg = cmsgpack.unpack(ARGV[1])
local call = redis.call
local marker, here_of = KEYS[1], KEYS[2]
local found = call('GET', marker) or arg.marker
call('SET', marker, found, 'PX', arg.keep_ms)
local reply = {'ok', found}
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
