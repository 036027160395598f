"""``tune`` leaves out duplicates (``dedupe_by``), as the fold would."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.errors import ConfigurationError
from streams_app.fold import Fold
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import DetailedEvent
from streams_app.folding.core.model import MemoryShard
from streams_app.settings import Limits
from streams_app.tuning.candidates import columns_for
from streams_app.tuning.file import LineReader
from streams_app.tuning.points import Curve
from streams_app.tuning.read_counts import ReadCounts
from streams_app.tuning.replay import curve_of

NOW_MS, QUIET_MS = 1_000_000, 10


def fold(dedupe_by: str = "e") -> Fold:
    return Fold(
        name="f",
        source="s",
        group_key="id",
        changed="m",
        quiet_period="10ms",
        max_hold="1s",
        backlog="sessions",
        dedupe_by=dedupe_by,
    )


def curve(events: list[DetailedEvent], capacity: int = 1_000) -> Curve:
    columns = columns_for(fold(), NOW_MS, capacity)
    columns.add(0, events)
    return curve_of("f", columns, Bounds.of(fold()), [QUIET_MS])


histories = st.lists(
    st.tuples(st.sampled_from([0, 1, 8, 30]), st.sampled_from([b"sa", b"sb"]), st.sampled_from([0, 0, 1, 2])),
    min_size=1,
    max_size=30,
)


@given(histories)
def test_curve_is_that_of_folding_if_retries_follow_within_the_quiet_period(history: list[tuple[int, bytes, int]]) -> None:
    events: list[DetailedEvent] = []
    at_ms = 1_000
    for number, (later, group, retries) in enumerate(history):
        at_ms += later
        for _ in range(1 + retries):
            events.append(DetailedEvent(len(events), at_ms, group, {"x": None}, id=b"%016d" % number))
    shard = MemoryShard(Bounds.of(fold()))
    sealed = [entry for event in events for entry in shard.fold(event, event.timestamp_ms)] + shard.seal(NOW_MS)
    found = curve(events)

    assert sum(entry.events for entry in sealed) == found.events == len(history)
    assert len(sealed) == found.points[0].records


def test_event_with_a_known_id_counts_again_after_the_maximum_hold() -> None:
    events = [DetailedEvent(number, at, b"sa", {"x": None}, id=b"1") for number, at in enumerate((0, 1_000, 2_001))]

    assert 2 == curve(events).events


def test_sample_of_the_groups_is_scaled_by_the_duplicates_in_it() -> None:
    events = [
        DetailedEvent(2 * number + copy, 1_000 + number, b"s%d" % number, {"x": None}, id=b"1")
        for number in range(2_000)
        for copy in range(2)
    ]
    found = curve(events, capacity=1_000)

    assert 2_000 == found.events
    assert found.points[0].records == pytest.approx(2_000, rel=0.2)


def test_file_has_no_headers_with_ids(tmp_path: Path) -> None:
    declared = fold("header:event-id")
    with pytest.raises(ConfigurationError, match="the lines of a file have no headers: use --from, or --journal"):
        LineReader(declared, Limits(), columns_for(declared, NOW_MS), ReadCounts(), time="t")
