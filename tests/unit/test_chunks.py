"""Events of a range grouped into runs and chunks, against folding them one at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgpack
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams_app.folding.core import chunks as batch
from streams_app.folding.core.chunks import (
    HELD_RUNS,
    LEAST_RUNS,
    LIVE_COST,
    MAX_COST,
    MOST_RUNS,
    NAME_COST,
    OPEN_COST,
    UPDATE_COST,
    Chunk,
    FoldEvent,
    Pace,
    Run,
    Scoring,
    chunks_of,
    single_events,
)
from streams_app.folding.core.record import Sealed
from streams_app.folding.store.arguments import Bounds, arguments_of, packed_closed, packed_plain, ranges_of
from streams_app.folding.store.keys import INFO_FIELD

NOW = 10_000
GROUPS = [b"sa", b"sb", b"sc", b"j1", b"s1"]
values = st.dictionaries(st.sampled_from("vwxyz"), st.integers(0, 9), max_size=3)
shapes = st.tuples(st.integers(1, 3), st.integers(-1, 200), st.sampled_from(GROUPS), values)


def placed(drawn: Sequence[tuple[int, int, bytes, dict[str, Any]]]) -> list[FoldEvent]:
    """Offsets ascend, with holes where the log skips some."""
    events, offset = [], -1
    for step, stamp, group, names in drawn:
        offset += step
        events.append(FoldEvent(offset, stamp, group, names))
    return events


events_of_a_range = st.lists(shapes, max_size=60).map(placed)


def scoring(clock_ms: int = 0, now_ms: int = NOW, arrived_ms: int | None = None, gap_ms: int | None = None) -> Scoring:
    return Scoring(clock_ms, now_ms, arrived_ms, gap_ms)


def scored(events: Sequence[FoldEvent], how: Scoring) -> list[int]:
    """One event at a time: the newest record time, never beyond the wall clock, never back."""
    clock, scores = max(how.clock_ms, (how.gap_ms is None and how.arrived_ms) or 0), []
    for event in events:
        clock = max(clock, min(event.timestamp_ms, how.now_ms))
        scores.append(clock)
    return scores


def naive(events: Sequence[FoldEvent], scores: Sequence[int], gap_ms: int | None) -> dict[bytes, list[Run]]:
    """The dict model: one event at a time."""
    folded: dict[bytes, list[Run]] = defaultdict(list)
    for event, score in zip(events, scores, strict=True):
        stamp = event.timestamp_ms if event.timestamp_ms >= 0 else score
        runs = folded[event.group]
        if not runs or (gap_ms is not None and score - runs[-1].last_score > gap_ms):
            runs.append(Run(event.offset, event.offset, 0, stamp, stamp, score, score, {}))
        run = runs[-1]
        run.last_offset, run.last_score, run.events = event.offset, score, run.events + 1
        run.low_ms, run.high_ms, run.names = min(run.low_ms, stamp), max(run.high_ms, stamp), {**run.changed, **event.changed}
    return folded


def joined(chunks: Sequence[Chunk], gap_ms: int | None) -> dict[bytes, list[Run]]:
    """What Redis holds after the chunks: a run joins the one before it unless there is a gap between them."""
    folded: dict[bytes, list[Run]] = defaultdict(list)
    for chunk in chunks:
        for group, runs in chunk.groups.items():
            for run in runs:
                held = folded[group]
                if held and (gap_ms is None or run.first_score - held[-1].last_score <= gap_ms):
                    last = held[-1]
                    held[-1] = Run(
                        last.first_offset, run.last_offset, last.events + run.events, min(last.low_ms, run.low_ms),
                        max(last.high_ms, run.high_ms), last.first_score, run.last_score, {**last.changed, **run.changed},
                    )  # fmt: skip
                else:
                    held.append(run)
    return folded


def limit_chunks(patch: pytest.MonkeyPatch, max_cost: int) -> None:
    for limit in ("MAX_COST", "LIVE_COST"):
        patch.setattr(batch, limit, max_cost)


scorings = st.builds(
    Scoring,
    clock_ms=st.integers(0, 120),
    now_ms=st.sampled_from([50, 150, NOW]),
    arrived_ms=st.none() | st.integers(0, 150),
    gap_ms=st.none() | st.integers(1, 30),
)


@given(events_of_a_range, scorings, st.integers(1, 120))
@settings(max_examples=200)
def test_chunks_add_up_to_folding_one_event_at_a_time(events: list[FoldEvent], how: Scoring, max_cost: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        limit_chunks(patch, max_cost)
        chunks = list(chunks_of(events, 1_000, how))
    scores = scored(events, how)

    assert naive(events, scores, how.gap_ms) == joined(chunks, how.gap_ms)
    assert len(events) == sum(chunk.events for chunk in chunks)


@given(events_of_a_range, scorings, st.integers(1, 120))
def test_chunks_end_in_ascending_order_at_their_last_event_and_the_last_at_the_end(
    events: list[FoldEvent], how: Scoring, max_cost: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        limit_chunks(patch, max_cost)
        chunks = list(chunks_of(events, 1_000, how))
    ends = [chunk.to for chunk in chunks]
    parts = [[event for event in events if chunk.above < event.offset <= chunk.to] for chunk in chunks]

    assert sorted(set(ends)) == ends
    assert 1_000 == ends[-1]
    assert [part[-1].offset for part in parts[:-1]] == ends[:-1]
    assert [len(part) for part in parts] == [chunk.events for chunk in chunks]
    assert [chunk.clock_ms for chunk in chunks[:-1]] == [chunk.start_ms for chunk in chunks[1:]]
    assert all(len(chunk.groups) <= max_cost // OPEN_COST + 1 for chunk in chunks)


@given(events_of_a_range)
def test_chunks_leave_the_events_as_they_were(events: list[FoldEvent]) -> None:
    before = [event._replace(names=dict(event.changed)) for event in events]
    list(chunks_of(events, 1_000, scoring()))

    assert before == events


@pytest.mark.parametrize("gap_ms", [None, 10**6])
@pytest.mark.parametrize(
    ("arrived_ms", "limit", "cost"),
    [pytest.param(None, MAX_COST, OPEN_COST + NAME_COST, id="behind"), pytest.param(NOW, LIVE_COST, UPDATE_COST + 1, id="live")],
)
def test_groups_beyond_the_limit_begin_another_chunk(arrived_ms: int | None, limit: int, cost: int, gap_ms: int | None) -> None:
    most = -(-limit // cost)
    events = [FoldEvent(offset, offset, b"s%d" % offset, {"x": 1}) for offset in range(most + 1)]
    chunks = list(chunks_of(events, most + 5, scoring(arrived_ms=arrived_ms, gap_ms=gap_ms)))

    assert [most, 1] == [len(chunk.groups) for chunk in chunks]
    assert [most - 1, most + 5] == [chunk.to for chunk in chunks]


def test_names_of_many_groups_begin_another_chunk_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_chunks(monkeypatch, 2 * OPEN_COST + 4 * NAME_COST)
    events = [FoldEvent(offset, 0, b"s%d" % offset, {"x": 1, "y": 2}) for offset in range(5)]

    assert [2, 2, 1] == [len(chunk.groups) for chunk in chunks_of(events, 9, scoring())]


def paced(groups: int) -> Pace:
    pace = Pace()
    pace.runs = groups
    return pace


@pytest.mark.parametrize(
    ("before", "groups", "held", "after"),
    [
        pytest.param(1_000, 1_000, HELD_RUNS, 1_000, id="as many as should be"),
        pytest.param(1_000, 1_000, 2 * HELD_RUNS, 500, id="twice as many"),
        pytest.param(9_000, 1_000, 2 * HELD_RUNS, 500, id="twice as many, in a chunk that was shorter than it might have been"),
        pytest.param(1_000, 900, 90 * HELD_RUNS, LEAST_RUNS, id="no fewer than the least"),
        pytest.param(1_000, 1_000, HELD_RUNS // 2 - 1, 1_500, id="few"),
        pytest.param(1_000, 400, 0, 1_000, id="few in a chunk that was short for another reason"),
        pytest.param(MOST_RUNS - 1, MOST_RUNS - 1, 0, MOST_RUNS, id="no more than the most"),
    ],
)
def test_pace_is_learned_from_how_many_groups_were_looked_at(before: int, groups: int, held: int, after: int) -> None:
    pace = paced(before)
    pace.learn(groups, held)

    assert after == pace.runs


@pytest.mark.parametrize("gap_ms", [None, 1, 10**6])
def test_each_chunk_goes_by_the_pace_of_its_moment(gap_ms: int | None) -> None:
    pace = paced(100)
    events = [FoldEvent(offset, 10 * offset, b"s%d" % offset, {}) for offset in range(1_000)]
    chunks = chunks_of(events, 999, replace(scoring(now_ms=10**9, gap_ms=gap_ms), pace=pace))
    first = next(chunks)
    pace.runs = 200
    second = next(chunks)

    for wanted, chunk in ((100, first), (200, second)):
        assert 0.8 * wanted <= len(chunk.groups) <= wanted


def test_no_pace_is_kept_while_events_are_folded_as_they_come() -> None:
    events = [FoldEvent(offset, offset, b"s%d" % offset, {}) for offset in range(100)]

    assert 1 == len(list(chunks_of(events, 99, replace(scoring(arrived_ms=NOW), pace=paced(10)))))


def test_empty_range_moves_the_fence_too() -> None:
    assert [Chunk(-1, 41, 70, NOW, 70, 0, {})] == list(chunks_of([], 41, scoring(clock_ms=70)))


@pytest.mark.parametrize(
    ("stamps", "how", "expected"),
    [
        pytest.param([10, 30, 20], scoring(), [10, 30, 30], id="the newest record time, never back"),
        pytest.param([10, 30], scoring(clock_ms=25), [25, 30], id="not below the partition clock"),
        pytest.param([10, 99], scoring(now_ms=40), [10, 40], id="a future-dated event scores as of now"),
        pytest.param([99], scoring(clock_ms=50, now_ms=40), [50], id="a wall clock that went back moves nothing"),
        pytest.param([10, 30], scoring(arrived_ms=60), [60, 60], id="at the end of the partition the wall clock counts"),
        pytest.param([-1, 30, -1], scoring(clock_ms=5), [5, 30, 30], id="an event without a timestamp moves nothing"),
    ],
)
def test_score_is_the_partition_clock_when_the_event_is_folded(stamps: list[int], how: Scoring, expected: list[int]) -> None:
    events = [FoldEvent(offset, stamp, b"sa", {}) for offset, stamp in enumerate(stamps)]
    (chunk,) = chunks_of(events, 9, how)

    assert expected == [run.last_score for run in single_events(events, chunk, frozenset([b"sa"]))[b"sa"]]
    assert expected[-1] == chunk.clock_ms


@pytest.mark.parametrize(("gap_ms", "expected"), [(10, [2, 1]), (9, [1, 1, 1]), (11, [3]), (None, [3])])
def test_event_exactly_at_the_quiet_period_still_belongs_to_the_run(gap_ms: int | None, expected: list[int]) -> None:
    events = [FoldEvent(offset, stamp, b"sa", {}) for offset, stamp in enumerate([100, 110, 121])]
    (chunk,) = chunks_of(events, 2, scoring(gap_ms=gap_ms))

    assert expected == [run.events for run in chunk.groups[b"sa"]]


def test_record_times_are_kept_as_they_are_beside_the_scores() -> None:
    events = [FoldEvent(offset, stamp, b"sa", {}) for offset, stamp in enumerate([100, 40, 170])]
    (chunk,) = chunks_of(events, 2, scoring(now_ms=120))

    assert [Run(0, 2, 3, 40, 170, 100, 120, {})] == chunk.groups[b"sa"]


def sessions_of(events: Sequence[FoldEvent], gap_ms: int) -> set[tuple[Any, ...]]:
    """Sessions of the whole log, group by group: record time as a running maximum, cut where the gap is longer."""
    clock, sessions = 0, defaultdict[bytes, list[list[tuple[int, int]]]](list)
    for event in events:
        clock = max(clock, event.timestamp_ms)
        held = sessions[event.group]
        if held and clock - held[-1][-1][1] <= gap_ms:
            held[-1].append((event.offset, clock))
        else:
            held.append([(event.offset, clock)])
    return {(group, *(offset for offset, _ in session)) for group, held in sessions.items() for session in held}


@given(events_of_a_range, st.lists(st.integers(0, 60), max_size=6), st.integers(1, 120), st.integers(1, 60))
@settings(max_examples=200)
def test_sessions_are_the_same_for_any_cut_into_batches(
    events: list[FoldEvent], cuts: list[int], max_cost: int, gap_ms: int
) -> None:
    edges = sorted({0, len(events), *(cut for cut in cuts if cut < len(events))})
    chunks: list[Chunk] = []
    clock_ms = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "MAX_COST", max_cost)
        for begin, end in pairwise(edges):
            part = events[begin:end]
            chunks += chunks_of(part, part[-1].offset, scoring(clock_ms, gap_ms=gap_ms))
            clock_ms = chunks[-1].clock_ms
    found = {
        (group, *(event.offset for event in events if event.group == group and run.first_offset <= event.offset <= run.last_offset))
        for group, runs in joined(chunks, gap_ms).items()
        for run in runs
    }

    assert sessions_of(events, gap_ms) == found


BOUNDS = st.builds(
    Bounds,
    quiet_ms=st.integers(1, 30),
    hold_ms=st.sampled_from([20, 10_000]),
    max_events=st.sampled_from([0, 2]),
    max_changed=st.sampled_from([2, 100]),
    outbox_limit=st.just(1),
)


@given(events_of_a_range, scorings, BOUNDS, st.booleans(), st.frozensets(st.sampled_from(GROUPS)))
def test_arguments_hold_each_event_once_as_open_runs_single_events_or_ended_sessions(
    events: list[FoldEvent], how: Scoring, bounds: Bounds, keep: bool, detail: frozenset[bytes]
) -> None:
    (chunk,) = chunks_of(events, 1_000, how)
    singles = {group: runs for group, runs in single_events(events, chunk, detail).items() if group in chunk.groups}
    found = arguments_of(
        chunk, bounds, gaps_close=how.gap_ms is not None, keeps_values=keep, partitions=4, epoch=b"eeee", singles=singles
    )  # fmt: skip
    packed = msgpack.unpackb(found.groups, raw=True)
    plain = msgpack.unpackb(packed_plain(found.plain), raw=True)
    for group, first_offset, last_score, fields in zip(plain[0::4], plain[1::4], plain[2::4], plain[3::4], strict=True):
        run = opened(fields)
        assert [first_offset, last_score] == [run[0], run[6]]
        assert run[6] - run[5] < bounds.hold_ms
        assert run[7] <= bounds.max_changed
        assert not bounds.max_events or run[2] < bounds.max_events
        packed.append([group, [run]])
    closed = msgpack.unpackb(packed_closed(found.closed), raw=True)
    entries = [Sealed.unpack(entry) for entry in closed[4::5]]
    parts = {group: [as_packed(run, keep) for run in singles.get(group, runs)] for group, runs in chunk.groups.items()}
    expected = []
    for group, runs in parts.items():
        gone = sum(entry.member == group for entry in entries)
        if gone < len(runs):
            expected.append([group, runs[gone:]])

    assert sorted(expected) == sorted(packed)
    assert entries == [session.sealed for session in found.closed]
    first_runs = {(group, run[0]): run for group, runs in parts.items() for run in runs}
    for entry in entries:
        run = first_runs[entry.member, entry.first_offset]
        assert run[:5] == [entry.first_offset, entry.last_offset, entry.events, entry.first_event_ms, entry.last_event_ms]
        assert chunk.clock_ms - run[6] > bounds.quiet_ms or entry.last_offset < chunk.groups[entry.member][-1].first_offset
        assert run[6] - run[5] < bounds.hold_ms
        assert not bounds.max_events or entry.events < bounds.max_events
        assert len(entry.names) <= bounds.max_changed
        assert entry.due_ms == (run[5] + bounds.hold_ms if entry.reason == "max_hold" else run[6] + bounds.quiet_ms)


def opened(fields: list[Any]) -> list[Any]:
    """The run that a group opened with, out of its sidecar."""
    assert fields[0] == INFO_FIELD
    epoch, first, length, opened_ms, lasted, events, low, span, count = msgpack.unpackb(fields[1], raw=True)
    assert epoch == b"eeee"
    low_ms = opened_ms + low
    names = dict(zip(fields[2::2], fields[3::2], strict=True))
    return [first, first + length, events, low_ms, low_ms + span, opened_ms, opened_ms + lasted, count, names]


def as_packed(run: Run, keep: bool) -> list[Any]:
    names = {name.encode(): orjson.dumps(value) if keep else b"" for name, value in run.changed.items()}
    return [
        run.first_offset, run.last_offset, run.events, run.low_ms, run.high_ms, run.first_score, run.last_score, len(names), names
    ]  # fmt: skip


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_ranges_hold_what_was_sent_and_nothing_that_is_pending(sent: set[int], others: set[int]) -> None:
    entries = {at: Sealed(b"s", at, at, 1, 0, 0, "quiet", 0, 1, {}) for at in sent | others}
    ranges = ranges_of([entries[at] for at in sent], [entries[at] for at in sorted(entries)])
    held = [at for low, high, count in ranges for at in entries if low <= at <= high]

    assert sorted(sent) == sorted(held)
    assert others - sent or len(ranges) <= 1
    assert [count for *_, count in ranges] == [sum(low <= at <= high for at in entries) for low, high, _ in ranges]
