"""Decisions about changes and values, without input or output (pure), and the ports of stores and sources.

``record`` reads a folded record, ``merge`` is the version guard, ``values`` converts values, ``column_types`` and ``group_rows``
are for tables with a row a group, ``query_rows`` and ``function_answer`` interpret what a source returns. The ports are ``store``,
``source`` and ``rebuilding``.
"""
