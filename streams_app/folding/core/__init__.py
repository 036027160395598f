"""Decides when groups close and what their records contain, without I/O (pure).

``event`` and ``chunks`` aggregate the events of a range, ``shard_clock`` determines their time, ``closing`` defines when a group
closes, ``record`` renders records, ``names`` has compact sets of changed names, ``model`` folds a shard in memory.
"""
