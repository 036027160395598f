"""The decisions of a live view, without Kafka, Redis and clocks (pure)."""
