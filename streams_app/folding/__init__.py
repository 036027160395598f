"""Folding: combines the events of a group into one record.

The subpackages import downward only: ``agents`` has the processor of folds and background tasks, ``shard`` the state that a
partition's owner caches in memory, ``store`` the state in Redis, ``reading`` decodes events, and ``core`` decides without I/O.
:mod:`streams_app.fold` declares a fold.
"""
