#!lua flags=allow-oom
-- Notes what has become of events: finished ones leave, those that wait stay with what is known of them.
--
-- KEYS      of the shard, see keys.py
-- token     text
-- number    text: number of begins, and of requests of learn.lua, that the owner knows of
-- told      number: of this request under its token, from 1 on
-- finished  array: offsets
-- waiting   array: offset, entry of each event that was put off
-- low       text: the low watermark: whatever is below it is finished
-- note      text: what is finished above it
--
-- A request that was on its way while a later one was answered changes nothing: the later one said more.
--
-- Returns {"ok"} or {"refused", "no-state" | "token" | "number"}. Repeating it changes nothing.
-- Cost    O(finished + waiting): about 1 us each.
-- include fenced.lua

read_marks('number', 'told')
local refused = refusal()
if refused then return refused end
if state.number ~= arg.number then return {'refused', 'number'} end
if arg.told <= tonumber(state.told or 0) then return {'ok'} end
-- First: an event that had left and was not known to be finished would be begun again, should the script die in between.
call('HSET', meta, 'fence', arg.low, 'note', arg.note)
for _, offset in ipairs(arg.finished) do call('HDEL', KEYS[2], offset) end
local waiting = arg.waiting
for i = 1, #waiting, 2 do call('HSET', KEYS[2], waiting[i], waiting[i + 1]) end
-- Last: the same request, sent again, is done again until all of it is.
call('HSET', meta, 'told', arg.told)
return {'ok'}
