"""Folding: combines the events of a group into one record.

Subpackages import downward only: ``agents`` contains the processor of folds and the background tasks, ``shard`` the state that the
owner of a partition keeps in memory, and ``store`` the state in Redis. ``reading`` decodes events, and ``core`` makes decisions
without I/O. A fold is declared by :mod:`streams_app.fold`.
"""
