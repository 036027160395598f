"""What detailed folds read from an event besides its group and names, and how their chunks are cut."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.fold import Fold
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.detailed_chunks import GROUP_WORK, RUN_WORK, DetailedChunkCutter
from streams_app.folding.core.event import DetailedEvent, event_of
from streams_app.folding.core.kept_chunks import KeptChunkCutter, split_kept_runs
from streams_app.folding.core.model import MemoryShard
from streams_app.folding.core.run_splitting import split_runs
from streams_app.folding.core.shard_clock import RangeTime
from streams_app.folding.reading.readers import reader_of
from streams_app.settings import Limits
from tests.helpers.kafka.records import Raw

TIME = RangeTime(10**12, None)


def fold(**options: Any) -> Fold:
    return Fold(**({"name": "f", "source": "s", "group_key": "g", "changed": "m", "quiet_period": "1s"} | options))


def read(declared: Fold, *values: Any) -> tuple[list[Any], list[str]]:
    raws = [Raw(at, 1_000 + at, b"a", orjson.dumps(value)) for at, value in enumerate(values)]
    reading = reader_of(declared, Limits()).read(raws)
    return reading.events, [one.reason for one in reading.rejected]


@pytest.mark.parametrize(
    ("event", "closes"),
    [
        ({"status": "done"}, True),
        ({"status": "open"}, False),
        ({"status": None}, False),
        ({"status": ["done"]}, False),
        ({"status": {"done": 1}}, False),
        ({}, False),
        ({"code": 1}, True),
        ({"code": 1.0}, True),
        ({"code": True}, False),
        ({"code": "1"}, False),
        ({"job": {"over": True}}, True),
        ({"job": {"over": 1}}, False),
        ({"job.over": True}, True),
        ({"job.over": False, "job": {"over": True}}, False),
        ({"job": "over"}, False),
        ({"status": "open", "code": 1}, True),
    ],
)
def test_event_closes_its_group_by_one_of_the_values_of_one_of_the_fields(event: dict[str, Any], closes: bool) -> None:
    declared = fold(close_when={"status": ["done", "cancelled"], "code": [1], "job.over": [True]})
    events, rejected = read(declared, {"g": "a", "m": "x", **event})

    assert ([closes], []) == ([one.closes for one in events], rejected)


def test_function_closes_a_group_and_its_error_is_a_dead_letter() -> None:
    declared = fold(close_when=lambda event: event["n"] > 1)
    events, rejected = read(declared, *({"g": "a", "m": "x", **rest} for rest in ({"n": 1}, {"n": 2}, {}, {"n": "x"})))

    assert ([False, True], ["user-error", "user-error"]) == ([one.closes for one in events], rejected)


def test_rule_is_applied_beside_functions() -> None:
    declared = fold(close_when={"status": ["done"]}, changed=lambda event: event["m"])
    events, _ = read(declared, {"g": "a", "m": "x", "status": "done"}, {"g": "a", "m": "x"})

    assert [True, False] == [one.closes for one in events]


histories = st.lists(
    st.tuples(st.integers(0, 25), st.sampled_from([b"sa", b"sb"]), st.sampled_from("uvw"), st.booleans()), min_size=1, max_size=25
)
bounds_of_a_fold = st.builds(
    Bounds, quiet_ms=st.just(10), hold_ms=st.sampled_from([20, 1_000]), max_events=st.sampled_from([0, 2]),
    max_bytes=st.sampled_from([0, 12, 40]), leading=st.booleans(), is_quiet_by_event=st.booleans(), sessions=st.booleans(),
    reads_details=st.just(True),
)  # fmt: skip


def events_of(history: list[Any], bounds: Bounds) -> list[DetailedEvent]:
    at_ms, events = 1_000, []
    for offset, (later, group, name, closes) in enumerate(history):
        at_ms += later
        json = b"x" * (1 + offset % 11) if bounds.max_bytes else b""
        events.append(
            DetailedEvent(
                offset,
                at_ms,
                group,
                {} if json else {name: offset},
                closes,
                json,
                offset % 5 * 2 if bounds.is_quiet_by_event else 0,
            )
        )
    return events


@given(histories, bounds_of_a_fold)
def test_runs_end_with_closing_events_and_cover_all_events(history: list[Any], bounds: Bounds) -> None:
    events = events_of(history, bounds)
    cutter_of = KeptChunkCutter if bounds.max_bytes else DetailedChunkCutter
    chunk = cutter_of(events, -1, len(events) - 1, bounds, keeps_values=True).next(TIME, 0)
    for group, runs in chunk.groups.items():
        own = [event for event in events if event.group == group]
        for run in runs:
            taken, own = own[: run.events], own[run.events :]
            assert (taken[0].offset, taken[-1].offset) == (run.first_offset, run.last_offset)
            assert [False] * (len(taken) - 1) + [run.closes] == [event.closes for event in taken]
            assert {name: value for event in taken for name, value in event.names.items()} == run.names
            assert ([(event, event.timestamp_ms) for event in taken] if bounds.max_bytes else None) == run.events_kept
        assert own == []


@given(histories, bounds_of_a_fold)
def test_split_runs_close_where_the_model_closes(history: list[Any], bounds: Bounds) -> None:
    own = [event for event in events_of(history, bounds) if event.group == b"sa"]
    if not own:
        return
    model = MemoryShard(bounds)
    records = [one for event in own for one in model.fold(event, event.timestamp_ms)]
    runs = split_runs([(event, event.timestamp_ms) for event in own], None, bounds)

    assert {one.last_offset for one in records if one.reason == "closed"} == {run.last_offset for run in runs if run.closes}
    assert {one.last_offset for one in records} <= {run.last_offset for run in runs}


@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=12), bounds_of_a_fold, st.integers(1, 6), st.sampled_from([0, 1, 4]),
    st.sampled_from([12, 200]), st.sampled_from([5, 1_000]),
)  # fmt: skip
def test_group_that_was_open_before_bounds_were_lowered_closes_where_the_model_closes(
    steps: list[int], former: Bounds, before: int, max_events: int, max_bytes: int, hold_ms: int
) -> None:
    former = replace(former, hold_ms=1_000, max_events=0, max_bytes=200)
    own = events_of([(step, b"sa", "u", False) for step in steps], former)
    model = MemoryShard(former)
    for event in own[:before]:
        model.fold(event, event.timestamp_ms)
    later = own[before:] or own[-1:]
    bounds = model.bounds = replace(former, max_events=max_events, max_bytes=max_bytes, hold_ms=hold_ms)
    open_group = deepcopy(model.open[b"sa"]) if before < len(own) else None
    chunk = KeptChunkCutter(later, -1, later[-1].offset, bounds, keeps_values=True).next(TIME, 0)
    runs = split_kept_runs(chunk.groups[b"sa"], open_group, bounds)
    closed = {one.last_offset for event in later for one in model.fold(event, event.timestamp_ms)}

    assert later == [event for run in runs for event, _ in run.events_kept or ()]
    assert {offset for offset in closed if offset >= later[0].offset} <= {run.last_offset for run in runs}


def test_chunk_ends_before_one_group_exceeds_a_script() -> None:
    events = [DetailedEvent(at, 1_000, b"sa", {"u": at}, True) for at in range(1_000)]
    cutter = DetailedChunkCutter(events, -1, 999, Bounds(10, 1_000, reads_details=True), keeps_values=True)
    sizes = []
    while cutter.above < 999:
        sizes.append(cutter.next(TIME, 0).events)

    assert sum(sizes) == 1_000
    assert max(sizes) <= GROUP_WORK / RUN_WORK


def test_plain_events_close_nothing() -> None:
    assert not event_of((0, 1, b"sa", {"u": 1})).closes
