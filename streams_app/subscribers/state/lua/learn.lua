#!lua
-- Notes the identities of events that were finished before, so that their duplicates are known.
--
-- KEYS       of the shard, see keys.py; then those of identities, see shared/identities.lua
-- token      text
-- number     text: number of begins and of such requests that the owner knows of
-- events     array: offset, identity of each event, in the order of the log
-- expire_ms  number: so long after the last one the identities of an hour are kept
--
-- An identity that is known already stays with the offset at which it was seen first.
--
-- The number goes up by one: a Redis that was rolled back under its owner, and has forgotten these identities, refuses what begins.
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
-- Last: a script that dies half-way is run again under the same number.
call('HSET', meta, 'number', after)
return {'ok', after}
