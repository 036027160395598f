"""Subscribers in a worker: the processor of a partition, the consumer of a subscriber, and all of them together."""
