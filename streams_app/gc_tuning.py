"""Tunes the garbage collector of Python for a process that handles batches of events."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_during_imports() -> Iterator[None]:
    """Turn garbage collection off within the block: it would take a tenth of the imports of a worker.

    Imports create some hundred thousand objects, nearly all of which stay. After the block, they are never searched for cycles.
    """
    gc.disable()
    try:
        yield
        gc.freeze()  # otherwise all of them would be searched as soon as garbage collection is on
    finally:
        gc.enable()


def search_cycles_rarely() -> None:
    """Make garbage collection of reference cycles rare.

    Batches are thousands of short-lived tuples and dictionaries without cycles. With the default thresholds of Python, garbage
    collection would take a third of the time. Objects that exist at the time of this call are never searched for cycles.
    """
    gc.freeze()
    gc.set_threshold(200_000, 50, 100)
