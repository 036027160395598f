"""A shard in the hands of its owner: the marks, the lock, the mirror of the outbox."""
