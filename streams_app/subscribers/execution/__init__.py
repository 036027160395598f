"""How events become attempts: decoding, queues, executor slots, retries, dead letters, metrics."""
