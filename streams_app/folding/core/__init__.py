"""Decides when groups close and what their records contain, without I/O (pure).

``event`` and ``chunks`` aggregate the events of a range, and ``shard_clock`` determines the score of each event. ``closing``
defines when a group closes, ``record`` renders folded records, ``names`` stores sets of changed names compactly, and ``model``
folds a shard in memory.
"""
