"""A chunk that proves too much for one script is cut again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Final

from streams_app.folding.batch import Chunk, Event, Scoring, chunks_of

MOST_HELD: Final = 450
"""Groups and sessions that one script looks at one by one, as they cannot be staged: some 11 ms."""


class ChunkTooLongError(Exception):
    """A chunk is to be folded in parts; no event of it is, though groups that had ended before may have been sealed.

    Attributes:
        parts: Of the chunk, in offset order, each by the pace at that moment.
    """

    def __init__(self, parts: Iterator[Chunk]) -> None:
        super().__init__("a chunk is to be folded in parts")
        self.parts = parts


def raise_parts(chunk: Chunk, events: Iterable[Event], scoring: Scoring) -> None:
    """Cuts a chunk again, unless it stays whole.

    Args:
        chunk: Of a backlog.
        events: At least its own, in offset order.
        scoring: As now known; the clocks are those of the chunk.

    Raises:
        ChunkTooLongError: With the parts.
    """
    own = [event for event in events if chunk.above < event[0] <= chunk.to]
    parts = chunks_of(own, chunk.to, replace(scoring, clock_ms=chunk.start_ms, now_ms=chunk.now_ms, arrived_ms=None), chunk.above)
    first = next(parts)
    if first.to < chunk.to:
        raise ChunkTooLongError(chain([first], parts))
