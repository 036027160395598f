"""What a journal decides and how it encodes events, without Kafka, Redis and clocks (pure)."""
