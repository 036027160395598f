"""Kafka, as this project speaks to it: members of groups and their consumers, the producer, topics and their ids, and patches.

``host`` (with ``consumer``, ``consumer_thread``, ``batches``) is Faust's consumer as a member of a group, ``member`` a bare one.
"""
