"""The rules for changes and values, without input or output (pure), and the ports of stores and sources.

``record`` parses folded records, ``merge`` is the version guard, and ``values`` converts values. ``column_types`` and
``group_rows`` are for tables with a row per group. ``query_rows`` and ``function_answer`` interpret the results of sources. The
ports are ``store``, ``source`` and ``rebuilding``.
"""
