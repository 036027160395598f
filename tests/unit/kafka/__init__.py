"""Unit tests of the Kafka clients."""
