"""A chunk that is cut again holds the same events, and says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.folding.batch import Chunk, FoldEvent, Pace, Scoring, chunks_of
from streams_app.folding.cutting import ChunkTooLongError, raise_parts

EVENTS = [FoldEvent(10 + 2 * number, 7 * number, b"s%d" % (number % 40), {}) for number in range(200)]


def parts_of(chunk: Chunk, scoring: Scoring) -> list[Chunk]:
    try:
        raise_parts(chunk, EVENTS, scoring)
    except ChunkTooLongError as long:
        return list(long.parts)
    return [chunk]


@given(pace=st.integers(5, 60), shorter=st.integers(1, 30), gap_ms=st.none() | st.integers(1, 500))
def test_parts_of_parts_are_of_the_events_of_their_chunk(pace: int, shorter: int, gap_ms: int | None) -> None:
    scoring = Scoring(0, 10**9, None, gap_ms, pace=Pace())
    assert scoring.pace is not None
    scoring.pace.groups = pace
    chunks = list(chunks_of(EVENTS, 1_000, scoring))
    for chunk in chunks:
        scoring.pace.groups = shorter
        parts = [smaller for part in parts_of(chunk, scoring) for smaller in parts_of(part, scoring)]

        assert [chunk.above, *(part.to for part in parts[:-1])] == [part.above for part in parts]
        assert (chunk.to, chunk.events) == (parts[-1].to, sum(part.events for part in parts))
        assert (chunk.start_ms, chunk.clock_ms) == (parts[0].start_ms, parts[-1].clock_ms)


def test_a_chunk_that_stays_whole_is_not_cut() -> None:
    scoring = Scoring(0, 10**9, None, None, pace=Pace())
    (chunk,) = chunks_of(EVENTS, 1_000, scoring)

    raise_parts(chunk, EVENTS, scoring)
    with pytest.raises(ChunkTooLongError):
        assert scoring.pace is not None
        scoring.pace.groups = 3
        raise_parts(replace(chunk), EVENTS, scoring)
