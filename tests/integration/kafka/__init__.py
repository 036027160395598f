"""Integration tests of the Kafka clients."""
