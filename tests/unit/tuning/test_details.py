"""A replay of events that close their groups gives the records that folding gives, event by event."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import DetailedEvent
from streams_app.folding.core.model import MemoryShard
from streams_app.tuning.columns import Columns
from streams_app.tuning.replay import curve_of

NOW_MS, FAR = 100_000, 10**9
histories = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 2, 3, 8, 20]), st.sampled_from([b"sa", b"sb", b"sc"]),
        st.lists(st.sampled_from("uvwx"), max_size=2, unique=True).map(dict.fromkeys), st.sampled_from([False, False, True]),
    ),
    min_size=1, max_size=40,
)  # fmt: skip
bounds_of_a_fold = st.builds(
    Bounds,
    quiet_ms=st.just(1),
    hold_ms=st.sampled_from([3, 9, 10**8]),
    max_events=st.sampled_from([0, 0, 2, 3]),
    max_changed=st.sampled_from([2, 10_000]),
    max_bytes=st.sampled_from([0, 0, 12, 30]),
    sessions=st.just(True),
    reads_details=st.just(True),
)


def placed(history: list[Any], bounds: Bounds) -> list[DetailedEvent]:
    at_ms, events = 1_000, []
    for offset, (later, group, names, closes) in enumerate(history):
        at_ms += later
        json = b"x" * (1 + (offset + later) % 11) if bounds.max_bytes else b""
        events.append(DetailedEvent(offset, at_ms, group, {} if json else names, closes, json))
    return events


def folded(events: list[DetailedEvent], bounds: Bounds) -> tuple[int, int]:
    """Records, and the longest wait of an event for its record."""
    shard, sealed = MemoryShard(bounds), []
    for event in events:
        sealed += shard.seal(event.timestamp_ms)
        sealed += shard.fold(event, event.timestamp_ms)
    sealed += shard.seal(FAR)
    waits = [
        one.due_ms - event.timestamp_ms
        for one in sealed
        for event in events
        if event.group == one.member and one.first_offset <= event.offset <= one.last_offset
    ]
    assert len(waits) == len(events)
    return len(sealed), max(waits)


@given(histories, bounds_of_a_fold, st.sampled_from([1, 2, 5, 30]))
def test_curve_agrees_with_folding(history: list[Any], bounds: Bounds, quiet_ms: int) -> None:
    events, keeps_events = placed(history, bounds), bounds.max_bytes > 0
    columns = Columns(now_ms=NOW_MS, max_changed=bounds.max_changed, capacity=1_000, reads_details=True, keeps_events=keeps_events)
    columns.add(0, events)
    (point,) = curve_of("f", columns, bounds, [quiet_ms]).points
    own = replace(bounds, quiet_ms=quiet_ms)

    assert folded(events, own) == (point.records, point.latency_max_ms)


def test_sample_keeps_what_closes_the_groups_in_it() -> None:
    events = [DetailedEvent(at, 1_000 + at, b"s%d" % (at % 400), {"u": None}, at % 400 == at % 7) for at in range(4_000)]
    columns = Columns(now_ms=NOW_MS, capacity=1_500, reads_details=True)
    columns.add(0, events)
    columns.sort()

    assert columns.halvings
    assert columns.closing is not None
    closing = sum(event.closes for event in events if hash(event.group) % 2**64 < 2 ** (64 - columns.halvings))
    assert closing == int(columns.closing.sum())
