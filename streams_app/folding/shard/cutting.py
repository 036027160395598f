"""A chunk that proves too much for one script is cut again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from streams_app.folding.core.chunks import HELD_RUNS, Chunk, Event, Scoring, chunks_of

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


def raise_parts(chunk: Chunk, events: Iterable[Event], scoring: Scoring, held: int) -> None:
    """Cuts a chunk again, unless it is of one event.

    Args:
        chunk: Of a backlog.
        events: At least its own, in offset order.
        scoring: As now known; the clocks are those of the chunk.
        held: Of it; a part should have :data:`HELD_RUNS`.

    Raises:
        ChunkTooLongError: With the parts.
    """
    own = [event for event in events if chunk.above < event[0] <= chunk.to]
    if len(own) > 1:
        raise ChunkTooLongError(_parts(chunk, own, scoring, min(max(1, len(own) * HELD_RUNS // held), len(own) - 1)))


def _parts(chunk: Chunk, own: Sequence[Event], scoring: Scoring, most_events: int) -> Iterator[Chunk]:
    clock, above = chunk.start_ms, chunk.above
    for begin in range(0, len(own), most_events):
        events = own[begin : begin + most_events]
        to = events[-1][0] if begin + most_events < len(own) else chunk.to
        for part in chunks_of(events, to, replace(scoring, clock_ms=clock, now_ms=chunk.now_ms, arrived_ms=None), above):
            clock, above = part.clock_ms, part.to
            yield part
