"""The state of shards in Redis: keys, scripts, and how groups are encoded."""
