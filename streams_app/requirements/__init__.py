"""What an application requires in Kafka: topics, rights on topics and consumer groups, and initial offsets."""
