"""Events of a range grouped into runs and chunks, compared with folding them one at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgpack
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams_app.folding.core import chunks as chunks_module
from streams_app.folding.core.chunks import Chunk, GroupRun
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.core.record import SealedGroup
from streams_app.folding.core.run_splitting import scored_events, split_runs
from streams_app.folding.core.shard_clock import RangeTime
from streams_app.folding.store.arguments import GroupPacker
from streams_app.folding.store.codec import INFO_FIELD
from tests.helpers.folding.scripts import EPOCH, PARTITIONS, chunks_of, packed_sessions

NOW = 10_000
GROUPS = [b"sa", b"sb", b"sc", b"j1", b"s1"]
values = st.dictionaries(st.sampled_from("vwxyz"), st.integers(0, 9), max_size=3)
shapes = st.tuples(st.integers(1, 3), st.integers(-1, 200), st.sampled_from(GROUPS), values)


def events_at_offsets(drawn: Sequence[tuple[int, int, bytes, dict[str, Any]]]) -> list[FoldEvent]:
    """Offsets ascend, with gaps where the log skips some."""
    events, offset = [], -1
    for step, stamp, group, names in drawn:
        offset += step
        events.append(FoldEvent(offset, stamp, group, names))
    return events


events_of_a_range = st.lists(shapes, max_size=60).map(events_at_offsets)


class Scoring(NamedTuple):
    """How the events of a range get their scores, and what splits them into sessions."""

    start_ms: int = 0
    cap_ms: int = NOW
    session_gap_ms: int | None = None


def cut(events: Sequence[FoldEvent], end: int, how: Scoring, most: int | None = None) -> list[Chunk]:
    """Cut events into chunks in which no group has more than `most` events or runs."""
    with pytest.MonkeyPatch.context() as patch:
        if most is not None:
            patch.setattr(chunks_module, "MAX_EVENTS", most)
            patch.setattr(chunks_module, "MAX_RUNS", most)
        return list(chunks_of(events, end, start_ms=how.start_ms, session_gap_ms=how.session_gap_ms, cap_ms=how.cap_ms))


def scored(events: Sequence[FoldEvent], how: Scoring) -> list[int]:
    """Score one event at a time by the newest record time, never beyond the wall clock, never decreasing."""
    clock, scores = how.start_ms, []
    for event in events:
        clock = max(clock, min(event.timestamp_ms, how.cap_ms))
        scores.append(clock)
    return scores


def naive(events: Sequence[FoldEvent], scores: Sequence[int], session_gap_ms: int | None) -> dict[bytes, list[GroupRun]]:
    """Fold one event at a time into a dict."""
    folded: dict[bytes, list[GroupRun]] = defaultdict(list)
    for event, score in zip(events, scores, strict=True):
        stamp = event.timestamp_ms if event.timestamp_ms >= 0 else score
        runs = folded[event.group]
        if not runs or (session_gap_ms is not None and score - runs[-1].last_score > session_gap_ms):
            runs.append(GroupRun(event.offset, event.offset, 0, stamp, stamp, score, score, {}))
        run = runs[-1]
        run.last_offset, run.last_score, run.events = event.offset, score, run.events + 1
        run.low_ms, run.high_ms, run.names = min(run.low_ms, stamp), max(run.high_ms, stamp), {**run.changed, **event.changed}
    return folded


def joined(chunks: Sequence[Chunk], session_gap_ms: int | None) -> dict[bytes, list[GroupRun]]:
    """Return what Redis contains after the chunks: a run joins the one before it unless there is a gap between them."""
    folded: dict[bytes, list[GroupRun]] = defaultdict(list)
    for chunk in chunks:
        for group, runs in chunk.groups.items():
            for run in runs:
                stored = folded[group]
                if stored and (session_gap_ms is None or run.first_score - stored[-1].last_score <= session_gap_ms):
                    last = stored[-1]
                    stored[-1] = GroupRun(
                        last.first_offset, run.last_offset, last.events + run.events, min(last.low_ms, run.low_ms),
                        max(last.high_ms, run.high_ms), last.first_score, run.last_score, {**last.changed, **run.changed},
                    )  # fmt: skip
                else:
                    stored.append(run)
    return folded


ways = st.builds(Scoring, st.integers(0, 120), st.sampled_from([50, 150, NOW]), st.none() | st.integers(1, 30))


@given(events_of_a_range, ways, st.integers(1, 20))
@settings(max_examples=200)
def test_chunks_add_up_to_folding_one_event_at_a_time(events: list[FoldEvent], how: Scoring, most: int) -> None:
    chunks = cut(events, 1_000, how, most)

    assert naive(events, scored(events, how), how.session_gap_ms) == joined(chunks, how.session_gap_ms)
    assert len(events) == sum(chunk.events for chunk in chunks)


@given(events_of_a_range, ways, st.integers(1, 20))
def test_chunks_end_in_ascending_order_at_their_last_event_and_the_last_at_the_end(
    events: list[FoldEvent], how: Scoring, most: int
) -> None:
    chunks = cut(events, 1_000, how, most)
    ends = [chunk.to for chunk in chunks]
    parts = [[event for event in events if chunk.above < event.offset <= chunk.to] for chunk in chunks]

    assert sorted(set(ends)) == ends
    assert 1_000 == ends[-1]
    assert [part[-1].offset for part in parts[:-1]] == ends[:-1]
    assert [len(part) for part in parts] == [chunk.events for chunk in chunks]
    assert [chunk.clock_ms for chunk in chunks[:-1]] == [chunk.start_ms for chunk in chunks[1:]]
    # One event begins a run, even if it exceeds the limit.
    assert all(len(runs) <= most + 1 for chunk in chunks for runs in chunk.groups.values())
    assert all(run.events <= max(most, 2) for chunk in chunks for runs in chunk.groups.values() for run in runs)


@given(events_of_a_range, ways)
def test_range_begun_by_a_previous_owner_is_one_chunk(events: list[FoldEvent], how: Scoring) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for limit in ("MAX_EVENTS", "MAX_RUNS", "MAX_NAMES"):
            patch.setattr(chunks_module, limit, 1)
        chunks = list(
            chunks_of(events, 1_000, start_ms=how.start_ms, session_gap_ms=how.session_gap_ms, cap_ms=how.cap_ms, is_whole=True)
        )

    assert [1_000] == [chunk.to for chunk in chunks]
    assert [naive(events, scored(events, how), how.session_gap_ms)] == [chunk.groups for chunk in chunks]


@given(events_of_a_range)
def test_chunking_does_not_modify_events(events: list[FoldEvent]) -> None:
    before = [event._replace(names=dict(event.changed)) for event in events]
    cut(events, 1_000, Scoring())

    assert before == events


def test_empty_range_moves_the_fence_too() -> None:
    assert [Chunk(-1, 41, RangeTime(NOW, None), 70, 70, 0, {})] == cut([], 41, Scoring(70))


@pytest.mark.parametrize(
    ("stamps", "how", "expected"),
    [
        pytest.param([10, 30, 20], Scoring(), [10, 30, 30], id="the newest record time, never back"),
        pytest.param([10, 30], Scoring(25), [25, 30], id="not below the partition clock"),
        pytest.param([10, 99], Scoring(cap_ms=40), [10, 40], id="a future-dated event scores as of now"),
        pytest.param([99], Scoring(50, 40), [50], id="a wall clock that went back moves nothing"),
        pytest.param([-1, 30, -1], Scoring(5), [5, 30, 30], id="an event without a timestamp moves nothing"),
    ],
)
def test_score_is_the_partition_clock_when_the_event_is_folded(stamps: list[int], how: Scoring, expected: list[int]) -> None:
    events = [FoldEvent(offset, stamp, b"sa", {}) for offset, stamp in enumerate(stamps)]
    (chunk,) = cut(events, 9, how)

    assert expected == [score for _, score in scored_events(events, chunk)[b"sa"]]
    assert expected[-1] == chunk.clock_ms


@pytest.mark.parametrize(("session_gap_ms", "expected"), [(10, [2, 1]), (9, [1, 1, 1]), (11, [3]), (None, [3])])
def test_event_exactly_at_the_quiet_period_still_belongs_to_the_run(session_gap_ms: int | None, expected: list[int]) -> None:
    events = [FoldEvent(offset, stamp, b"sa", {}) for offset, stamp in enumerate([100, 110, 121])]
    (chunk,) = cut(events, 2, Scoring(session_gap_ms=session_gap_ms))

    assert expected == [run.events for run in chunk.groups[b"sa"]]


def test_record_times_are_kept_unchanged_beside_the_scores() -> None:
    events = [FoldEvent(offset, stamp, b"sa", {}) for offset, stamp in enumerate([100, 40, 170])]
    (chunk,) = cut(events, 2, Scoring(cap_ms=120))

    assert [GroupRun(0, 2, 3, 40, 170, 100, 120, {})] == chunk.groups[b"sa"]


def sessions_of(events: Sequence[FoldEvent], session_gap_ms: int) -> set[tuple[Any, ...]]:
    """Return the sessions of the whole log by group: record time is a running maximum, and a longer gap starts a new session."""
    clock, sessions = 0, defaultdict[bytes, list[list[tuple[int, int]]]](list)
    for event in events:
        clock = max(clock, event.timestamp_ms)
        of_group = sessions[event.group]
        if of_group and clock - of_group[-1][-1][1] <= session_gap_ms:
            of_group[-1].append((event.offset, clock))
        else:
            of_group.append([(event.offset, clock)])
    return {(group, *(offset for offset, _ in session)) for group, of_group in sessions.items() for session in of_group}


@given(events_of_a_range, st.lists(st.integers(0, 60), max_size=6), st.integers(1, 20), st.integers(1, 60))
@settings(max_examples=200)
def test_sessions_are_independent_of_the_split_into_batches(
    events: list[FoldEvent], cuts: list[int], most: int, session_gap_ms: int
) -> None:
    boundaries = sorted({0, len(events), *(cut for cut in cuts if cut < len(events))})
    chunks: list[Chunk] = []
    clock_ms = 0
    for begin, end in pairwise(boundaries):
        part = events[begin:end]
        chunks += cut(part, part[-1].offset, Scoring(clock_ms, session_gap_ms=session_gap_ms), most)
        clock_ms = chunks[-1].clock_ms
    found = {
        (group, *(event.offset for event in events if event.group == group and run.first_offset <= event.offset <= run.last_offset))
        for group, runs in joined(chunks, session_gap_ms).items()
        for run in runs
    }

    assert sessions_of(events, session_gap_ms) == found


BOUNDS = st.builds(
    Bounds,
    quiet_ms=st.integers(1, 30),
    hold_ms=st.sampled_from([20, 10_000]),
    max_events=st.sampled_from([0, 2]),
    max_changed=st.sampled_from([2, 100]),
    sessions=st.booleans(),
)


@given(events_of_a_range, ways, BOUNDS, st.booleans(), st.frozensets(st.sampled_from(GROUPS)), st.integers(0, 200))
def test_arguments_contain_each_event_once_as_open_runs_split_runs_or_ended_sessions(
    events: list[FoldEvent], how: Scoring, bounds: Bounds, keep: bool, detail: frozenset[bytes], silent_from_ms: int
) -> None:
    (chunk,) = cut(events, 1_000, how._replace(session_gap_ms=bounds.session_gap_ms))
    apart = {group: split_runs(scored, None, bounds) for group, scored in scored_events(events, chunk).items() if group in detail}
    packing = GroupPacker(bounds, EPOCH, PARTITIONS, keeps_values=keep)
    found = packing.groups(chunk, sorted(chunk.groups), chunk.clock_ms, silent_from_ms, apart)
    values = msgpack.unpackb(msgpack.packb(found.values, use_bin_type=False), raw=True)
    arguments = list(zip(values[0::2], values[1::2], packed_sessions(found), strict=True))

    assert sorted(chunk.groups) == [group for group, *_ in arguments]
    assert [SealedGroup.unpack(record) for _, _, sessions in arguments for *_, record in sessions] == found.sealed
    assert found.sessions.lowest == min([sealed.first_offset for sealed in found.sealed], default=0)
    for group, rest, sessions in arguments:
        expected = [as_packed(run, keep, silent_from_ms) for run in apart.get(group, chunk.groups[group])]
        ended = [SealedGroup.unpack(record) for *_, record in sessions]
        is_plain = rest and isinstance(rest[0], int)
        runs = [opened(run) for run in ([rest] if is_plain else rest or [])]
        assert expected[len(ended) :] == runs
        if is_plain:
            check_plain(expected[-1], bounds)
        for entry, run, (first_offset, first_score, last_score, _) in zip(ended, expected, sessions, strict=False):
            check_plain(run, bounds)
            assert [entry.first_offset, *run[5:7]] == [first_offset, first_score, last_score]
            assert run[:5] == [entry.first_offset, entry.last_offset, entry.events, entry.first_event_ms, entry.last_event_ms]
            assert chunk.clock_ms - run[6] > bounds.quiet_ms or run is not expected[-1]
            assert entry.due_ms == (run[5] + bounds.hold_ms if entry.reason == "max_hold" else run[6] + bounds.quiet_ms)
            assert run[-1] == {name.encode(): value for name, value in entry.names.items()}


def check_plain(run: list[Any], bounds: Bounds) -> None:
    """Check that no bound closes a group that this run opens."""
    assert run[6] - run[5] < bounds.hold_ms
    assert run[8] <= bounds.max_changed
    assert not bounds.max_events or run[2] < bounds.max_events


def opened(run: list[Any]) -> list[Any]:
    """Return the run that opened a group, from its sidecar."""
    first_offset, silent, field, numbers, *fields = run
    epoch, first, length, opened_ms, lasted, events, low, span, count, *silence = msgpack.unpackb(numbers, raw=True)
    assert (INFO_FIELD, EPOCH, first_offset) == (field, epoch, first)
    assert silent == opened_ms + lasted + sum(silence)
    low_ms = opened_ms + low
    names = dict(zip(fields[0::2], fields[1::2], strict=True))
    return [first, first + length, events, low_ms, low_ms + span, opened_ms, opened_ms + lasted, silent, count, names]


def as_packed(run: GroupRun, keep: bool, silent_from_ms: int) -> list[Any]:
    names = {name.encode(): orjson.dumps(value) if keep else b"" for name, value in run.changed.items()}
    return [
        run.first_offset, run.last_offset, run.events, run.low_ms, run.high_ms, run.first_score, run.last_score,
        max(run.last_score, silent_from_ms), len(names), names,
    ]  # fmt: skip
