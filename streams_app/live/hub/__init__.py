"""The hub: the server that sends states of live views to browsers. It reads them from Redis and does not use Kafka."""
