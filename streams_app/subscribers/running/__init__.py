"""Runs subscribers in a worker: the processor of a partition, the consumer of a subscriber, and all subscribers together."""
