"""A shard in the hands of its owner: its marks and its lock, how a range is cut and sent part by part, the copy of the outbox."""
