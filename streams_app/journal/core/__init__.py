"""Rules and encoding of a journal, without Kafka, Redis and clocks (pure)."""
