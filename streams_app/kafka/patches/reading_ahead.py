"""Receives replies of a broker on uvloop in the minimum number of iterations of the loop.

The reader of aiokafka pauses its transport as soon as it has 128 kB (0.14, ``conn.py``), until the next iteration: a reply of
4 MB takes two dozen iterations, each as long as everything else in the loop. The pauses gain nothing, because a reply is
passed on as a whole, and needs its memory in any case.
"""

from __future__ import annotations

from typing import Final

from aiokafka import conn

READER_BYTES: Final = 4 * 1024 * 1024
"""A reader stops its transport at twice that: more than the replies that are asked for, four partitions of 1 MB each."""


def read_ahead() -> None:
    """Patch the connections of this process: they read a whole reply before they pause. Idempotent."""
    conn.READER_LIMIT = READER_BYTES
