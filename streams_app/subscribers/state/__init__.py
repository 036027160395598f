"""Durable state of subscribers: finished offsets and commit metadata in Kafka, attempts and event ids in Redis."""
