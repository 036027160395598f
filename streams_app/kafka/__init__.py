"""Kafka clients: members of consumer groups, the producer, topics and their ids, and patches of aiokafka and Faust.

``faust_consumer`` is a group member on Faust's consumer (``consumer``, ``consumer_thread``, ``batches``).
``group_member`` is one without Faust.
"""
