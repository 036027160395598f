"""A shard as its owner keeps it: fence and lock, the progress of a range, the copy of the outbox."""
