-- What every script of an owner begins with: the keys of the shard, its arguments by name, and the marks that are stored.
local meta, due, first, outbox, prefix, flush = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local call, pack, unpacked = redis.call, cmsgpack.pack, cmsgpack.unpack
local arg = unpacked(ARGV[1])
local PAGE = 4000 -- values in one call: Lua passes at most some 8 000

local state = {}
local function read_marks(...)
  local values = call('HMGET', meta, ...)
  for i, name in ipairs({...}) do state[name] = values[i] end
end
read_marks('token', 'fence', 'clock', 'epoch', 'to', 'cursor')

-- Why the owner is refused, nil if he is not: the first thing he asks. "fence" is compared where he says one.
local function refusal()
  if not state.fence then return {'refused', 'no-state'} end
  if state.token ~= arg.token then return {'refused', 'token'} end
  if arg.fence and state.fence ~= arg.fence then return {'refused', 'fence'} end
end

-- A command with many values, in several calls.
local function in_pages(command, key, values)
  for from = 1, #values, PAGE do call(command, key, unpack(values, from, math.min(from + PAGE - 1, #values))) end
end
local function unlink(keys)
  for from = 1, #keys, PAGE do call('UNLINK', unpack(keys, from, math.min(from + PAGE - 1, #keys))) end
end

-- The range under way is over, or given up: the next one begins at the fence.
local function drop_range()
  if state.to then call('HDEL', meta, 'to', 'cursor', 'cap', 'arrived') end
end
