"""Queries and actions for operators, outside a worker: they read Redis and Kafka, and request changes from the owner of a shard."""
