#!lua
-- How far a partition is, whoever owns it; takes it from nobody and changes nothing.
--
-- KEYS  of the shard, see keys.py
--
-- Returns {"ok", fence, note} or {"none"} where there is no state.
-- Cost    O(1).
-- include fenced.lua

read_marks('number', 'note')
if not (state.fence and state.number) then return {'none'} end
return {'ok', state.fence, state.note or ''}
