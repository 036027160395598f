"""The state of a shard in its owner's memory: fence and lock, progress of a range, copy of the outbox."""
