#!lua flags=allow-oom
-- Stores the outcomes of events: the entries of finished events are removed, those of waiting events are updated.
--
-- KEYS      of the shard, see keys.py
-- token     text
-- number    text: number of events that owners have stored as begun, plus number of requests of learn.lua
-- told      number: position of this request among those with the same token, from 1 on
-- finished  array: offsets of finished events
-- waiting   array: two items for each event that waits for its next attempt: offset, entry
-- low       text: the low watermark, below which all events are finished
-- note      text: metadata: finished and begun offsets above it
--
-- A request that arrives after a later one was executed changes nothing.
--
-- Returns {"ok"} or {"refused", "no-state" | "token" | "number"}. Repeating it changes nothing.
-- Cost    O(finished + waiting): about 1 us each.
-- include fenced.lua

read_marks('number', 'told')
local refused = refusal()
if refused then return refused end
if state.number ~= arg.number then return {'refused', 'number'} end
if arg.told <= tonumber(state.told or 0) then return {'ok'} end
-- Written before entries are removed: if the script were killed in between, an event without an entry that is not stored as finished
-- would begin a second time.
call('HSET', meta, 'fence', arg.low, 'note', arg.note)
for _, offset in ipairs(arg.finished) do call('HDEL', KEYS[2], offset) end
local waiting = arg.waiting
for i = 1, #waiting, 2 do call('HSET', KEYS[2], waiting[i], waiting[i + 1]) end
-- Written last, so that a request that was interrupted is executed in full when it is repeated.
call('HSET', meta, 'told', arg.told)
return {'ok'}
