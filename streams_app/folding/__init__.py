"""Folding: the events of a group become one record.

The rooms import downward only: ``agents`` run, ``shard`` holds what a partition's owner knows, ``store`` is the state in Redis,
``reading`` makes events of bytes, ``core`` decides. The declaration of a fold is :mod:`streams_app.fold`.
"""
