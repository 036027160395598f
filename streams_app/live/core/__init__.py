"""The rules of live views as pure code: without Kafka, Redis and clocks."""
