"""Thresholds of Python's garbage collector for a process that handles events."""

from __future__ import annotations

import gc


def search_cycles_rarely() -> None:
    """Makes the search for reference cycles rare.

    Batches are thousands of short-lived tuples and dictionaries without cycles: with the usual thresholds a third of the time would
    go into the search. What exists so far is never searched.
    """
    gc.freeze()
    gc.set_threshold(200_000, 50, 100)
