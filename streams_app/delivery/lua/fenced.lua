-- The beginning of every script on fenced state: decodes the arguments, reads fields of the state, and checks token and fence.
-- The state is that of one processor in one partition, under one hash tag. KEYS[1] is a hash with, among others:
--   token  random token of the owner, written by its claim
--   fence  highest source offset that is applied
--   format version of the layout of this state; a state without it has 1. A version of this project that changes the layout writes its
--          number before it writes the first such data. Scripts of an older version then neither read nor write the state. The
--          format "reset" closes a state that `streams-app reset` removes to the scripts of all versions.
-- The caller passes its "token" and, if the script continues from the fence, the "fence" that it expects. The script that applies the
-- end of a range writes the fence last, because Redis keeps the writes of a script that fails half-way.
local meta = KEYS[1]
local call, pack, unpacked = redis.call, cmsgpack.pack, cmsgpack.unpack
local arg = unpacked(ARGV[1])

local state = {}
local function read_marks(...)
  local values = call('HMGET', meta, ...)
  for i, name in ipairs({...}) do state[name] = values[i] end
end
read_marks('token', 'fence', 'format')
local FORMAT = 3 -- newest format that these scripts know, as STATE_FORMAT in errors.py
if (tonumber(state.format or 1) or math.huge) > FORMAT then return {'refused', 'newer-format', state.format} end

-- Returns the reply that rejects the caller, nil if token and fence are as expected. Call it before the first write.
local function refusal()
  if not state.fence then return {'refused', 'no-state'} end
  if state.token ~= arg.token then return {'refused', 'token'} end
  if arg.fence and state.fence ~= arg.fence then return {'refused', 'fence'} end
end
