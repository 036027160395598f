#!lua
-- Reads the progress of a partition without checking its owner; changes nothing.
--
-- KEYS  of the shard, see keys.py
--
-- Returns {"ok", fence, note} or {"none"} if there is no state.
-- Cost    O(1).
-- include fenced.lua

read_marks('number', 'note')
if not (state.fence and state.number) then return {'none'} end
return {'ok', state.fence, state.note or ''}
