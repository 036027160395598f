"""Replies of a broker on uvloop, received in as few turns of the loop as there can be.

aiokafka's reader stops its transport as soon as it holds 128 kB (0.14, ``conn.py``), to let it go on in the next turn: a reply of
4 MB takes two dozen turns, each as long as whatever else the loop has to do. Nothing is gained by the stops, as a reply is
handed out whole and has the memory it needs in any case.
"""

from __future__ import annotations

from typing import Final

from aiokafka import conn

READER_BYTES: Final = 4 * 1024 * 1024
"""A reader stops its transport at twice that: more than the replies that are asked for, four partitions of 1 MB each."""


def read_ahead() -> None:
    """From now on every connection of this process reads so much before it stops; may be called again."""
    conn.READER_LIMIT = READER_BYTES
