"""What is decided about groups, without touching the world (pure).

``event`` and ``chunks`` make runs of what was read, ``shard_clock`` gives them their time, ``closing`` says why a group closes,
``record`` renders what leaves, ``names`` are the sets of changed names, ``pace`` sizes scripts, ``model`` is a shard in memory.
"""
