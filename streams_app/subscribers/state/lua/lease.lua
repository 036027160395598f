#!lua flags=allow-oom
-- Leases to a worker some of the attempts that may start now, by the rate of the whole subscriber and the clock of this server.
--
-- KEYS      of the shard, which is a whole subscriber here, see keys.py
-- token     text: of the worker, random
-- wanted    number: maximum number of leases; 0: the worker only reports that it exists
-- every_us  number: time after which one lease is added
-- full_us   number: time after which the bucket is full
-- gone_ms   number: a worker that has not requested leases for this long no longer has a share
--
-- streams_app/subscribers/state/token_bucket.py does the same calculation. Leases are never returned: if a reply is lost, its leases
-- are not used.
--
-- Returns {"ok", leases, us until the next lease, number of workers}. Repeating it grants more leases.
-- Cost    O(workers): about 10 us.

local arg = cmsgpack.unpack(ARGV[1])
local call, key = redis.call, KEYS[1]
local time = call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local held, empty, workers = call('HGETALL', key), now - arg.full_us, 1
for i = 1, #held, 2 do
  if held[i] == 'empty' then
    empty = math.min(math.max(tonumber(held[i + 1]), empty), now)
  elseif held[i] ~= arg.token then
    if now - tonumber(held[i + 1]) > arg.gone_ms * 1000 then call('HDEL', key, held[i]) else workers = workers + 1 end
  end
end
local granted = math.min(arg.wanted, math.floor((now - empty) / arg.every_us + 1e-6))
empty = empty + granted * arg.every_us
call('HSET', key, 'empty', string.format('%.0f', empty), arg.token, string.format('%.0f', now))
call('PEXPIRE', key, math.ceil(math.max(arg.full_us / 1000, arg.gone_ms)))
return {'ok', granted, math.max(0, math.floor(empty + arg.every_us - now)), workers}
