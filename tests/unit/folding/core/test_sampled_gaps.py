"""The gaps that a sample counts, compared with a recomputation of all groups."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streams_app.folding.core.chunks import PAUSE_MS
from streams_app.folding.core.event import PlainEvent as Event
from streams_app.folding.core.group_sample import GroupSample
from tests.unit.folding.core.sampled import BOUNDS_MS, DAY, GROUPS, SECOND, added, bounds, cut, log_of, recomputed

times = st.one_of(st.integers(-20 * SECOND, 40 * SECOND), st.sampled_from([0, 1, 999, 1_000, 1_001, 2_000, 10_000, 10_001, DAY]))

logs = st.lists(st.tuples(times, st.sampled_from(GROUPS)), min_size=1, max_size=60).map(log_of)


@given(logs, st.sets(st.integers(0, 59)), st.sampled_from([None, 300, 10 * SECOND]))
def test_gaps_are_independent_of_the_split_into_chunks(events: list[Event], cuts: set[int], session_gap_ms: int | None) -> None:
    sample = GroupSample(bounds(), BOUNDS_MS)
    ends = sorted({end for end in cuts if end < len(events) - 1} | {len(events) - 1})
    *found, split = added([sample.folded(0, chunk) for chunk in cut(events, ends, session_gap_ms)])
    counts, _, groups = expected = recomputed(events)

    assert [*expected, 0] == [*found, split]
    assert groups + sum(counts[BOUNDS_MS.index(10 * SECOND) + 1 :]) == sample._records


def test_events_folded_by_another_owner_between_leave_no_gap() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS)
    events = log_of([(0, b"sa"), (5 * SECOND, b"sa"), (5 * SECOND, b"sa"), (5 * SECOND, b"sa")])
    chunks = cut(events, [0, 1, 2, 3], None)
    found = added([sample.folded(0, chunks[at]) for at in (0, 2, 3)])

    assert (1, 5 * SECOND, 3 - 1) == (sum(found[0]), found[1], found[2])


def test_refolded_events_are_not_counted_twice() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS)
    events = log_of([(1_500, GROUPS[at % 3]) for at in range(40)])
    first = [sample.folded(0, chunk) for chunk in cut(events, [9, 29], None)]
    refolded = [sample.folded(0, chunk) for chunk in cut(events, [9, 19, 29, 39], None)]

    assert list(recomputed(events)) == list(added([*first, *refolded])[:3])


def test_partly_counted_chunk_is_not_counted() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS)
    chunks = cut(log_of([(1_500, b"sa")] * 40), [9], None) + cut(log_of([(1_500, b"sa")] * 40), [19, 39], None)
    seen = [sample.folded(0, chunk) for chunk in chunks]

    # 9 gaps, and 19 of the last chunk, which the group begins anew: the gap between them is unknown.
    assert (9 + 19, 28 * 1_500, 2) == (sum(added(seen)[0]), *added(seen)[1:3])


def test_partitions_are_counted_separately() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS)
    chunk = cut(log_of([(0, b"sa"), (5 * SECOND, b"sa")]), [1], None)[0]

    assert [1, 1] == [sample.folded(partition, chunk).begun for partition in (0, 1)]


def test_refolded_events_are_not_counted_twice_after_a_partition_returns() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS)
    chunk = cut(log_of([(1_500, b"sa")] * 4), [3], None)[0]
    seen = sample.folded(0, chunk)
    sample.keep([])

    assert [1, 0] == [seen.begun, sample.folded(0, chunk).begun]


def test_first_bucket_bound_is_the_pause() -> None:
    assert PAUSE_MS == BOUNDS_MS[0]
