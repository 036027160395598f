"""Large groups, and runs with many names or ended holds, are split into chunks of bounded size."""

from __future__ import annotations

import pytest

from streams_app.folding.core.chunks import (
    MAX_EVENTS,
    MAX_HOLDS,
    MAX_NAMES,
    MAX_NAMES_OF_RUNS,
    MAX_NEAR_EVENTS,
    MAX_RUNS,
    MAX_WIDE_RUNS,
)
from streams_app.folding.core.event import FoldEvent
from tests.helpers.folding.scripts import chunks_of


@pytest.mark.parametrize("keeps_values", [True, False])
def test_group_with_ever_new_names_is_split_into_chunks(keeps_values: bool) -> None:
    events = [FoldEvent(i, i * 10, b"sg", {f"n{i}-{j}": 1 for j in range(256)}) for i in range(400)]

    chunks = list(chunks_of(events, 500, keeps_values=keeps_values))

    name_counts = [sum(len(run.changed) for runs in chunk.groups.values() for run in runs) for chunk in chunks]
    assert 400 * 256 == sum(name_counts)
    assert max(name_counts) <= MAX_NAMES + 256
    assert 500 == chunks[-1].to


def test_group_with_a_gap_before_every_event_is_split_into_chunks() -> None:
    events = [FoldEvent(i, i * 10, b"sg", {}) for i in range(2 * MAX_RUNS + 1)]

    chunks = list(chunks_of(events, len(events) - 1, session_gap_ms=1))

    assert [MAX_RUNS, MAX_RUNS, 1] == [len(chunk.groups[b"sg"]) for chunk in chunks]


def test_group_with_gaps_and_many_names_is_split_into_more_chunks() -> None:
    names = {f"n{number}": 1 for number in range(MAX_NAMES_OF_RUNS // MAX_WIDE_RUNS)}
    events = [FoldEvent(i, i * 10, b"sg", names) for i in range(2 * MAX_WIDE_RUNS)]

    chunks = list(chunks_of(events, len(events) - 1, session_gap_ms=1))

    assert [MAX_WIDE_RUNS] * 2 == [len(chunk.groups[b"sg"]) for chunk in chunks]


@pytest.mark.parametrize(
    ("hold_ms", "expected"),
    [(10 * MAX_NEAR_EVENTS // MAX_HOLDS - 1, [MAX_NEAR_EVENTS] * 2), (10 * MAX_NEAR_EVENTS, [2 * MAX_NEAR_EVENTS])],
    ids=["very many", "few"],
)
def test_run_with_too_many_ended_holds_is_split(hold_ms: int, expected: list[int]) -> None:
    events = [FoldEvent(i, i * 10, b"sg", {}) for i in range(2 * MAX_NEAR_EVENTS)]

    assert expected == [chunk.events for chunk in chunks_of(events, len(events) - 1, hold_ms=hold_ms)]


def test_run_with_more_names_than_a_group_allows_is_split() -> None:
    events = [FoldEvent(i, i, b"sg", {f"a{i}": 1, f"b{i}": 1}) for i in range(2 * MAX_NEAR_EVENTS)]

    found = [
        [chunk.events for chunk in chunks_of(events, len(events) - 1, max_changed=most)]
        for most in (2 * MAX_NEAR_EVENTS - 1, 4 * MAX_NEAR_EVENTS)
    ]

    assert [[MAX_NEAR_EVENTS] * 2, [2 * MAX_NEAR_EVENTS]] == found


def test_group_with_very_many_events_is_split_into_chunks() -> None:
    events = [FoldEvent(i, i, b"sg", {}) for i in range(2 * MAX_EVENTS + 1)]

    chunks = list(chunks_of(events, len(events) - 1))

    assert [MAX_EVENTS, MAX_EVENTS, 1] == [chunk.events for chunk in chunks]
