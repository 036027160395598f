-- What a script on fenced state begins with: its arguments by name, the marks that are stored, and whether the caller is refused. The
-- state is that of one processor in one partition, under one hash tag, and KEYS[1] is the hash with its marks:
--   token  of its owner, as the claim gave it: fresh and random
--   fence  highest source offset that is applied
-- The caller names its "token" and, where it wants to go on from there, the "fence" it expects. The fence is written last, by the script
-- that applies the end of a range: Redis keeps what a script has written that dies half-way.
local meta = KEYS[1]
local call, pack, unpacked = redis.call, cmsgpack.pack, cmsgpack.unpack
local arg = unpacked(ARGV[1])

local state = {}
local function read_marks(...)
  local values = call('HMGET', meta, ...)
  for i, name in ipairs({...}) do state[name] = values[i] end
end
read_marks('token', 'fence')

-- Why the caller is refused, nil if it is not; asked before anything is written.
local function refusal()
  if not state.fence then return {'refused', 'no-state'} end
  if state.token ~= arg.token then return {'refused', 'token'} end
  if arg.fence and state.fence ~= arg.fence then return {'refused', 'fence'} end
end
