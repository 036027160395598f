"""The state of a shard in its owner's memory: the fence, the lock, the progress within a range, and a copy of the outbox."""
