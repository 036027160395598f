"""Queries and actions of operators, from outside a worker: they read Redis and Kafka, and request changes that the owner makes."""
