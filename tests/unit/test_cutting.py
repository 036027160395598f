"""A chunk that is cut again holds the same events, and says so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.folding.core.chunks import HELD_RUNS, Chunk, FoldEvent, Pace, Scoring, chunks_of
from streams_app.folding.shard.cutting import ChunkTooLongError, raise_parts

EVENTS = [FoldEvent(10 + 2 * number, 7 * number, b"s%d" % (number % 40), {}) for number in range(200)]


def parts_of(chunk: Chunk, scoring: Scoring, held: int) -> list[Chunk]:
    try:
        raise_parts(chunk, EVENTS, scoring, held)
    except ChunkTooLongError as long:
        return list(long.parts)
    return [chunk]


@given(pace=st.integers(5, 60), shorter=st.integers(1, 30), held=st.integers(1, 5_000), gap_ms=st.none() | st.integers(1, 500))
def test_parts_of_parts_are_of_the_events_of_their_chunk(pace: int, shorter: int, held: int, gap_ms: int | None) -> None:
    scoring = Scoring(0, 10**9, None, gap_ms, pace=Pace())
    assert scoring.pace is not None
    scoring.pace.runs = pace
    chunks = list(chunks_of(EVENTS, 1_000, scoring))
    for chunk in chunks:
        scoring.pace.runs = shorter
        parts = [smaller for part in parts_of(chunk, scoring, held) for smaller in parts_of(part, scoring, held)]

        assert [chunk.above, *(part.to for part in parts[:-1])] == [part.above for part in parts]
        assert (chunk.to, chunk.events) == (parts[-1].to, sum(part.events for part in parts))
        assert (chunk.start_ms, chunk.clock_ms) == (parts[0].start_ms, parts[-1].clock_ms)


def test_a_chunk_of_one_event_is_not_cut() -> None:
    scoring = Scoring(0, 10**9, None, None, pace=Pace())
    (chunk,) = chunks_of(EVENTS[:1], 1_000, scoring)

    raise_parts(chunk, EVENTS[:1], scoring, 10**6)


@pytest.mark.parametrize("held", [1, HELD_RUNS, 2 * HELD_RUNS, 10**6])
def test_any_other_chunk_is_cut_by_how_much_is_held(held: int) -> None:
    scoring = Scoring(0, 10**9, None, 1, pace=Pace())
    events = [FoldEvent(at, 10 * at, b"sa", {}) for at in range(100)]
    (chunk,) = chunks_of(events, 99, scoring)
    with pytest.raises(ChunkTooLongError) as raised:
        raise_parts(chunk, events, scoring, held)
    parts = [part.events for part in raised.value.parts]

    assert min(99, max(1, 100 * HELD_RUNS // held)) == max(parts) == parts[0]
    assert 100 == sum(parts)
