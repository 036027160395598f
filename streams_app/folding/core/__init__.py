"""Decides when groups close and what their records contain, without I/O (pure).

``event`` and ``chunks`` aggregate the events of a range, ``shard_clock`` determines their time, ``closing`` defines when a group
closes, ``record`` renders records, ``names`` stores sets of changed names, ``model`` is a shard in memory.
"""
