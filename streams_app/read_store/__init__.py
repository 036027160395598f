"""Keeps the read side in sync with what was folded: only the changed names, and never back in time.

``record`` and ``merge`` decide (pure), ``store`` and ``sqlite`` write, ``sources`` knows the current values, ``sync`` is one pass,
``agent`` reads the output topics with a consumer of its own, so that a store that is down never delays folding.
"""
