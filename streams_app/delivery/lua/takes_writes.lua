#!lua
-- Tests whether Redis accepts writes, without writing. Redis assumes that a script without flags in its first line may write: a server
-- that is full, read-only or cannot save rejects the script before it runs.
--
-- Returns 1
-- Cost    O(1)
return 1
