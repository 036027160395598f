"""The delivery protocol of all processors that read a topic: ownership of partitions, ranges of records, commits.

Reading order: ``processor`` (port to the users of this layer), ``group_consumer`` (port to Kafka), ``ownership`` and ``claim``,
``batch`` and ``ranges`` (the chain rule), ``offset_metadata`` and ``commits``, ``clocks``.
"""
