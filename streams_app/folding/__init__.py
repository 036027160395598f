"""Folding: the events of a group become one record.

``definition``, ``batch``, ``partition_clock``, ``record`` and ``reader`` decide (pure); ``shard`` and ``store`` with ``lua/`` are
the state in Redis; ``claiming``, ``partition``, ``emitter`` and ``ownership`` act.
"""
