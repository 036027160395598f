"""Keeps the read side in sync with what was folded: only the changed names, and never back in time.

``record``, ``values``, ``rows`` and ``merge`` decide (pure), ``store``, ``sqlite`` and ``postgresql`` write, ``sources`` and
``postgresql_source`` know the current values, ``sync`` is one pass, ``processor`` is what the delivery hands the output topics to,
and ``agent`` is the member of a group of its own that reads them, so that a store that is down never delays folding.
"""
