"""What a live view decides, without Kafka, Redis and clocks (pure)."""
