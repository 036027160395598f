"""Clients of Kafka: members of consumer groups, the producer, topics and their ids, and patches of aiokafka and Faust.

``host`` (with ``consumer``, ``consumer_thread``, ``batches``) is Faust's consumer as a member of a group, ``member`` a bare one.
"""
