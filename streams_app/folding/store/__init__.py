"""What a shard looks like in Redis: its keys, its scripts, what they are called with and what they say."""
