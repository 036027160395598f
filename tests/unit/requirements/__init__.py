"""What an application requires in Kafka."""
