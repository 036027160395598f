#!lua
-- Stores events as begun, and their identities, before they start.
--
-- KEYS       of the shard, see keys.py; then those of identities, see shared/identities.lua
-- token      text
-- number     text: number of events that owners have stored as begun, plus number of requests of learn.lua
-- events     array: three items for each event: offset, entry, identity; identity "" = do not store it
-- expire_ms  number: the identities of an hour expire this long after the last one was stored
--
-- An event whose identity is stored with another offset is a duplicate and does not begin. If the reply to a request is lost, the
-- request can be repeated: it finds its own entries, and each identity with the offset of its own event.
--
-- Returns {"ok", number, then for each duplicate its position among the events, from 0 on, and the offset of the first event with its
--         identity} or {"refused", "no-state" | "token" | "number"}. Events that are not in the reply may start.
-- Cost    O(events x hours): about 2 us an event and hour.
-- include fenced.lua
-- include identities.lua

read_marks('number')
local refused = refusal()
if refused then return refused end
local events = arg.events
local after = string.format('%.0f', tonumber(arg.number) + #events / 3)
if state.number ~= arg.number and state.number ~= after then return {'refused', 'number'} end
local reply = {'ok', after}
for i = 1, #events, 3 do
  local offset, entry, identity, first = events[i], events[i + 1], events[i + 2], ''
  if identity ~= '' then
    first = first_seen(identity) or ''
    if first == '' then call('HSET', KEYS[3], identity, offset) end
    if first == offset then first = '' end
  end
  if first == '' then
    call('HSET', KEYS[2], offset, entry)
  else
    reply[#reply + 1] = (i - 1) / 3
    reply[#reply + 1] = first
  end
end
if #KEYS > 2 then call('PEXPIRE', KEYS[3], arg.expire_ms) end
-- Written last, so that the request can be repeated with the same number if the script is killed before its end.
call('HSET', meta, 'number', after)
return reply
