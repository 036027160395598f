#!lua
-- Stores the identities of events that were finished earlier, so that duplicates of them are recognised.
--
-- KEYS       of the shard, see keys.py; then those of identities, see shared/identities.lua
-- token      text
-- number     text: number of events that owners have stored as begun, plus number of requests of this script
-- events     array: two items for each event, in the order of the log: offset, identity
-- expire_ms  number: the identities of an hour expire this long after the last one was stored
--
-- An identity that is stored already retains the offset of its first event.
--
-- The number increases by one. So if Redis is restored from an older copy without these identities, the next begin.lua is rejected.
--
-- Returns {"ok", number} or {"refused", "no-state" | "token" | "number"}. Repeating it, also with more events, does no harm.
-- Cost    O(events x hours): about 2 us an event and hour.
-- include fenced.lua
-- include identities.lua

read_marks('number')
local refused = refusal()
if refused then return refused end
local after = string.format('%.0f', tonumber(arg.number) + 1)
if state.number ~= arg.number and state.number ~= after then return {'refused', 'number'} end
local events = arg.events
for i = 1, #events, 2 do
  if not first_seen(events[i + 1]) then call('HSET', KEYS[3], events[i + 1], events[i]) end
end
call('PEXPIRE', KEYS[3], arg.expire_ms)
-- Written last, so that the request can be repeated with the same number if the script is killed before its end.
call('HSET', meta, 'number', after)
return {'ok', after}
