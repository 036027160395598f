"""Journals: the events of a topic, stored in Redis by key and UTC day, compressed after their day, and removed by age and size.

``core`` decides which segment stores an event, and encodes events (pure). ``store`` reads and changes the state of journals in
Redis. ``agents`` fill journals from Kafka in a worker. ``reading`` gives the stored events to readers.
"""
