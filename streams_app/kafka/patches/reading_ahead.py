"""Patch of aiokafka's readers: they receive replies on uvloop in the minimum number of iterations of the event loop.

The reader of aiokafka (0.14, ``conn.py``) pauses its transport until the next iteration when it has 128 kB. So a reply of 4 MB
takes two dozen iterations, each of which lasts as long as all other work in the loop. The pauses save no memory, because a reply is
passed on as a whole.
"""

from __future__ import annotations

from typing import Final

from aiokafka import conn

READER_BYTES: Final = 4 * 1024 * 1024
"""A reader pauses its transport once it has buffered twice this size.

Most replies are smaller: a reply for four partitions, with the default of at most 1 MB each, has 4 MB.
"""


def read_ahead() -> None:
    """Patch the connections of this process to pause reading only once 8 MB are buffered. Further calls have no effect."""
    conn.READER_LIMIT = READER_BYTES
