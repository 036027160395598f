"""The hub: holds the connections of browsers, and shows them whole states of live views; without Kafka."""
