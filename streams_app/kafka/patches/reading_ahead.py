"""Patch of aiokafka's readers: they receive replies on uvloop in the minimum number of iterations of the event loop.

The reader of aiokafka (0.14, ``conn.py``) pauses its transport until the next iteration when it has 128 kB. So a reply of 4 MB
takes two dozen iterations, each of which lasts as long as all other work in the loop. The pauses save no memory, because a reply is
passed on as a whole.
"""

from __future__ import annotations

from typing import Final

from aiokafka import conn

READER_BYTES: Final = 4 * 1024 * 1024
"""A reader pauses its transport at twice this size, which exceeds the requested replies of four partitions with 1 MB each."""


def read_ahead() -> None:
    """Patch the connections of this process to read a whole reply before they pause. Further calls have no effect."""
    conn.READER_LIMIT = READER_BYTES
