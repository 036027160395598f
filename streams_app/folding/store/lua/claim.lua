#!lua flags=allow-oom
-- Makes a fresh token the owner of a shard; creates the state where there is none.
--
-- KEYS[1] meta          hash
-- KEYS[2] due           zset
-- KEYS[3] first         zset
-- KEYS[4] outbox        zset
-- KEYS[5] group_prefix  prefix of the sidecar hashes (same hash tag)
-- ARGV[1] token         random text of the claimant
-- ARGV[2] fence         offset the state begins with where there is none ("" = do not create)
-- ARGV[3] epoch         four random bytes: tells this state's groups from leftovers of an older one
-- ARGV[4] definition    text: what the fold's stored state means
-- ARGV[5] owner         text: the claimant, for people
-- ARGV[6] topics        text: where records and dead letters go, for whoever drains the fold once it is no longer declared
-- ARGV[7] topic_id      text: of the source as the broker knows it, for whoever claims next; "" leaves what is stored
--
-- Returns {"ok" | "new", fence, clock, record_clock, definition, open groups, outbox records, epoch, late}; {"none"}; or
--         {"again"}: to be called again, see beyond.lua.
-- Cost    O(log n), and of what was staged for a range that was never folded; O(outbox) where leftovers of a half-lost state are
--         dropped.
local meta, due, first, outbox, prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, fence, epoch, definition, owner, topics = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local topic_id = ARGV[7]
-- include beyond.lua

local state = redis.call('HMGET', meta, 'fence', 'clock', 'record_clock', 'definition', 'epoch', 'late')
if state[1] and state[5] then
  redis.call('HSET', meta, 'token', token, 'owner', owner, 'topics', topics)
  if topic_id ~= '' then redis.call('HSET', meta, 'topic_id', topic_id) end
  if not drop_beyond(state[1]) then return {'again'} end
  return {'ok', state[1], state[2] or '0', state[3] or '0', state[4] or '',
          redis.call('ZCARD', first), redis.call('ZCARD', outbox), state[5], state[6] or '0'}
end
if fence == '' then
  return {'none'}
end
-- Without a fence whatever else is left says nothing that Kafka's low mark does not say better: begin clean.
redis.call('DEL', due, first, outbox, undo)
redis.call('HSET', meta, 'token', token, 'owner', owner, 'topics', topics, 'clock', '0', 'record_clock', '0', 'epoch', epoch, 'definition', definition,
           'topic_id', topic_id, 'fence', fence)
return {'new', fence, '0', '0', definition, 0, 0, epoch, '0'}
