"""The state of shards in Redis: keys, scripts, and encoding of groups."""
