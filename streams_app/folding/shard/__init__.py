"""The owner's view of a shard: fence and lock, progress of a range, copy of the outbox."""
