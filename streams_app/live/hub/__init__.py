"""The hub: holds the connections of browsers and sends them whole states of live views, without Kafka."""
