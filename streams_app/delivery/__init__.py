"""The delivery protocol of everything that reads a topic: ownership of partitions, ranges of records, commits.

Reading order: ``processor`` (what uses this layer), ``group_consumer`` (what it uses), ``ownership`` and ``claim``, ``batch`` and
``ranges`` (the chain rule), ``offset_metadata`` and ``commits``, ``clocks``.
"""
