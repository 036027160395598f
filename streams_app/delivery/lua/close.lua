#!lua flags=allow-oom
-- Closes the state of a partition to all workers, before `streams-app reset` removes it; also in a Redis that is full.
--
-- KEYS[1]  hash with the token and the fence of the state; a key of another type is no state that a worker claims
-- ARGV[1]  text: format that no version reads
--
-- Returns 1 if the state is closed, else 0
-- Cost    O(1)
if redis.call('TYPE', KEYS[1])['ok'] ~= 'hash' then return 0 end
redis.call('HSET', KEYS[1], 'format', ARGV[1])
return 1
