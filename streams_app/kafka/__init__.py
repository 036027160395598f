"""Kafka clients: members of consumer groups, the producer, topics and their ids, and patches of aiokafka and Faust.

``faust_consumer`` is the group member of folds, which reads through Faust's consumer; ``consumer``, ``consumer_thread`` and
``batches`` adapt this consumer. ``group_member`` is a group member without Faust, for all other processors.
"""
