"""Runs events as attempts: decoding, queues, executor slots, retries, dead letters and metrics."""
