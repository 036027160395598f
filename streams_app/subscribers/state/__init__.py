"""The durable state of subscribers: finished offsets, the metadata of commits, and the attempts and event ids in Redis."""
