"""Integration tests of what an application requires in Kafka."""
