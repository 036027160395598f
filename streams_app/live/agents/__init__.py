"""The part of the worker that updates live views from Kafka."""
