"""What an operator asks and does, from outside a worker: read in Redis and Kafka, requested there, done by the owner."""
