"""Runs that contain a bound are split where it closes their group."""

from __future__ import annotations

from copy import deepcopy
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.core.model import MemoryShard, OpenGroup
from streams_app.folding.core.run_splitting import split_runs
from tests.helpers.folding.shapes import bounds_of_a_fold

histories = st.lists(
    st.tuples(st.integers(0, 25), st.dictionaries(st.sampled_from("uvwxyz"), st.integers(0, 9), max_size=3)),
    min_size=1,
    max_size=25,
)


def scored(history: list[tuple[int, dict[str, int]]]) -> list[tuple[FoldEvent, int]]:
    """Events of one group with their scores."""
    found, score = [], 1_000
    for at, (later, names) in enumerate(history):
        score += later
        found.append((FoldEvent(at, score - 3, b"sa", names), score))
    return found


@given(histories, bounds_of_a_fold, st.integers(0, 24))
def test_new_run_starts_exactly_where_the_group_closes(
    history: list[tuple[int, dict[str, int]]], bounds: Bounds, before: int
) -> None:
    events, model = scored(history), MemoryShard(bounds)
    for event, score in events[:before]:
        model.fold(event, score)
    found = split_runs(events[before:], deepcopy(model.open.get(b"sa")), bounds) if events[before:] else []
    begins: list[int] = []
    is_alone = False
    for event, score in events[before:]:
        open_group = model.open.get(b"sa")
        closed = {entry.reason for entry in model.fold(event, score)}
        if not begins or is_alone or open_group is None or open_group.last_offset != event.offset:
            begins.append(event.offset)
        is_alone = "max_changed" in closed

    assert begins == [run.first_offset for run in found]
    assert [event.offset for event, _ in events[before:]] == [
        offset for run in found for offset in range(run.first_offset, run.last_offset + 1)
    ]
    assert [run.last_offset - run.first_offset + 1 for run in found] == [run.events for run in found]


def test_events_already_in_the_group_form_a_separate_run() -> None:
    open_group = OpenGroup(0, 1_000, 1, 1_000, 1_000, events=2)
    found = split_runs(scored([(0, {"u": 1})] * 5), open_group, Bounds(10, 1_000, max_events=4))

    assert [(0, 1), (2, 3), (4, 4)] == [(run.first_offset, run.last_offset) for run in found]


def test_values_without_a_json_form_are_unchanged() -> None:
    events = [(FoldEvent(at, 70, b"sa", {"u": Decimal(at)}), 70) for at in range(3)]
    found = split_runs(events, None, Bounds(10, 1_000, max_events=2))

    assert [(2, {"u": Decimal(1)}), (1, {"u": Decimal(2)})] == [(run.events, run.changed) for run in found]


def test_run_has_the_last_values_and_the_first_and_last_times_of_its_events() -> None:
    events = [
        (FoldEvent(0, 70, b"sa", {"u": 1}), 90),
        (FoldEvent(1, -1, b"sa", {"v": 2}), 95),
        (FoldEvent(2, 60, b"sa", {"u": 3}), 99),
    ]
    (run,) = split_runs(events, None, Bounds(10, 1_000))

    assert (0, 2, 3, 60, 95, 90, 99, {"u": 3, "v": 2}) == (
        run.first_offset, run.last_offset, run.events, run.low_ms, run.high_ms, run.first_score, run.last_score, run.changed,
    )  # fmt: skip
    assert {"u": 1} == events[0][0].names
