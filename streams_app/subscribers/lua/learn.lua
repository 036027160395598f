#!lua
-- Notes the ids of events that were finished before, so that their duplicates are known.
--
-- KEYS       of the shard, see keys.py; then those of ids, the hour that is now first
-- token      text
-- number     text: number of begins that the owner knows of
-- events     array: offset, id of each event, in the order of the log
-- expire_ms  number: so long after their last id the ids of an hour are kept
--
-- An id that is known already stays with the offset at which it was seen first.
--
-- Returns {"ok"} or {"refused", "no-state" | "token" | "number"}. Repeating it changes nothing.
-- Cost    O(events x hours): about 2 us an event and hour.
-- include fenced.lua

read_marks('number')
local refused = refusal()
if refused then return refused end
if state.number ~= arg.number then return {'refused', 'number'} end
local events = arg.events
for i = 1, #events, 2 do
  local is_known = false
  for k = 3, #KEYS do
    if call('HEXISTS', KEYS[k], events[i + 1]) == 1 then
      is_known = true
      break
    end
  end
  if not is_known then call('HSET', KEYS[3], events[i + 1], events[i]) end
end
call('PEXPIRE', KEYS[3], arg.expire_ms)
return {'ok'}
