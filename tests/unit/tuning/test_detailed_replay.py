"""A replay of events that close their group or set its quiet period gives the records of folding, event by event."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streams_app.folding.core.closing import LEADING, Bounds
from streams_app.folding.core.event import DetailedEvent
from streams_app.folding.core.model import MemoryShard
from streams_app.folding.core.record import SealedGroup
from streams_app.tuning.columns import Columns
from streams_app.tuning.points import Point
from streams_app.tuning.replay import curve_of

NOW_MS, FAR = 100_000, 10**9
AT_MOST_MS = 30
NO_OWN = -1
"""``shorter_ms`` of an event that takes the default, see :func:`streams_app.tuning.columns.fold_to_read`."""

histories = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 2, 3, 8, 20]), st.sampled_from([b"sa", b"sb", b"sc"]),
        st.lists(st.sampled_from("uvwx"), max_size=3, unique=True).map(dict.fromkeys), st.sampled_from([False, False, True]),
        st.sampled_from([NO_OWN, NO_OWN, 0, 10, 25, 27, 29]),
    ),
    min_size=1, max_size=40,
)  # fmt: skip
bounds_of_a_fold = st.builds(
    Bounds,
    quiet_ms=st.just(1),
    hold_ms=st.sampled_from([3, 9, 10**8]),
    max_events=st.sampled_from([0, 0, 1, 2, 3]),
    max_changed=st.sampled_from([2, 10_000]),
    max_bytes=st.sampled_from([0, 0, 12, 30]),
    is_quiet_by_event=st.booleans(),
    leading=st.booleans(),
    sessions=st.just(True),
    reads_details=st.just(True),
)
BLOCKED = [f"streams_app.tuning.{name}._BLOCK" for name in ("columns", "name_sets", "memory", "replay", "splitting")]


def detailed_events(history: list[Any], bounds: Bounds) -> list[DetailedEvent]:
    at_ms, events = 1_000, []
    for offset, (later, group, names, closes, shorter) in enumerate(history):
        at_ms += later
        json = b"x" * (1 + (offset + later) % 11) if bounds.max_bytes else b""
        own = shorter if bounds.is_quiet_by_event else 0
        events.append(DetailedEvent(offset, at_ms, group, {} if json else names, closes, json, own))
    return events


def with_default(events: list[DetailedEvent], bounds: Bounds, quiet_ms: int) -> tuple[list[DetailedEvent], Bounds]:
    """Return events and bounds as a worker has them if a candidate is the quiet period, or its default."""
    if not bounds.is_quiet_by_event:
        return events, replace(bounds, quiet_ms=quiet_ms)
    # A default may exceed AT_MOST_MS, as a candidate of --windows: the periods set by events stay as they are.
    longest = max(quiet_ms, AT_MOST_MS)
    shorter = [longest - (quiet_ms if one.shorter_ms < 0 else AT_MOST_MS - one.shorter_ms) for one in events]
    own = [one._replace(shorter_ms=ms) for one, ms in zip(events, shorter, strict=True)]
    return own, replace(bounds, quiet_ms=longest)


def folded(events: list[DetailedEvent], bounds: Bounds) -> list[SealedGroup]:
    shard, sealed = MemoryShard(bounds), []
    for event in events:
        sealed += shard.seal(event.timestamp_ms)
        sealed += shard.fold(event, event.timestamp_ms)
    return sealed + shard.seal(FAR)


def waits_for(sealed: list[SealedGroup], events: list[DetailedEvent]) -> list[int]:
    waits = [
        one.due_ms - event.timestamp_ms
        for one in sealed
        for event in events
        if event.group == one.member and one.first_offset <= event.offset <= one.last_offset
    ]
    assert len(waits) == len(events)
    return sorted(waits)


def open_at(instant_ms: int, events: list[DetailedEvent], bounds: Bounds) -> int:
    """Count groups that are open at an instant, inclusive at both ends: those due later, and those with an event then."""
    shard = MemoryShard(bounds)
    for event in events:
        if event.timestamp_ms < instant_ms:
            shard.seal(event.timestamp_ms)
            shard.fold(event, event.timestamp_ms)
    left = {name for name, one in shard.open.items() if bounds.closed_by(one.opened_ms, one.quiet_from_ms)[1] >= instant_ms}
    return len(left | {event.group for event in events if event.timestamp_ms == instant_ms})


def replayed(events: list[DetailedEvent], bounds: Bounds, windows: list[int]) -> list[Point]:
    columns = Columns(
        now_ms=NOW_MS, max_changed=bounds.max_changed, capacity=1_000, reads_details=True, keeps_events=bounds.max_bytes > 0,
        longest_own_ms=AT_MOST_MS if bounds.is_quiet_by_event else None,
    )  # fmt: skip
    columns.add(0, events)
    curve = curve_of("f", columns, bounds, windows)
    own = sum(one.shorter_ms >= 0 for one in events) if bounds.is_quiet_by_event else None
    assert own == curve.own_periods
    return list(curve.points)


def later(ms: int, names: str = "", group: bytes = b"sa") -> tuple[int, bytes, dict[str, None], bool, int]:
    return ms, group, dict.fromkeys(names), False, NO_OWN


WINDOWS = st.lists(st.sampled_from([1, 2, 5, 30, 50]), min_size=1, max_size=3, unique=True)


@given(histories, bounds_of_a_fold, WINDOWS, st.sampled_from([2, 3, 7, 1 << 19]))
@example([later(0), later(8), later(1)], Bounds(1, 3, leading=True, reads_details=True), [30], 7)
@example([later(0), later(1, "uvw"), later(1)], Bounds(1, FAR, 0, 2, leading=True, reads_details=True), [30], 7)
@example([later(0), later(1, group=b"sb")], Bounds(1, FAR, 1, leading=True, reads_details=True), [30], 2)
def test_curve_agrees_with_folding_in_every_number(history: list[Any], bounds: Bounds, windows: list[int], block: int) -> None:
    events = detailed_events(history, replace(bounds, sessions=True))
    with pytest.MonkeyPatch.context() as patch:
        for name in BLOCKED:
            patch.setattr(name, block)
        points = replayed(events, bounds, windows)

    for point in points:
        own, of = with_default(events, replace(bounds, sessions=True), point.quiet_ms)
        sealed = folded(own, of)
        waits = waits_for(sealed, own)
        ranks = [waits[-(-len(waits) * percent // 100) - 1] for percent in (50, 95, 99)]
        found = point.latency_p50_ms, point.latency_p95_ms, point.latency_p99_ms, point.latency_mean_ms, point.latency_max_ms
        assert len(sealed) == point.records
        assert (*ranks, round(sum(waits) / len(waits)), waits[-1]) == found
        assert max(open_at(one.timestamp_ms, own, of) for one in own) == point.peak_open_groups


def test_early_records_are_counted_beside_those_of_the_events_that_follow() -> None:
    at = {b"sa": (0, 3, 4, 50), b"sb": (0,), b"sc": (0, 40)}
    rows = sorted((ms, group) for group, times in at.items() for ms in times)
    events = [DetailedEvent(offset, 1_000 + ms, group, {"u": None}) for offset, (ms, group) in enumerate(rows)]
    bounds = Bounds(10, FAR, leading=True, sessions=True, reads_details=True)
    (point,) = replayed(events, bounds, [10])

    assert [LEADING] * 5 + ["quiet"] == sorted(one.reason for one in folded(events, bounds))
    assert (6, 3) == (point.records, point.peak_open_groups)


def test_events_of_an_early_record_take_no_memory() -> None:
    names = {f"name_{number}": None for number in range(20)}
    alone = [DetailedEvent(at, 1_000 + at, b"s%d" % at, names) for at in range(100)]
    followed = [DetailedEvent(at, 1_000 + at // 2, b"s%d" % (at // 2), names) for at in range(200)]
    bounds = Bounds(1, FAR, leading=True, sessions=True, reads_details=True)
    sizes = [replayed(events, bounds, [1_000])[0].redis_bytes or 0 for events in (alone, followed)]

    assert sizes[0] / 100 < 450
    assert sizes[1] - sizes[0] == pytest.approx(100 * 20 * (6.5 + 4), rel=0.05)


def test_events_with_their_own_quiet_period_keep_it_for_any_default() -> None:
    events = [
        DetailedEvent(0, 1_000, b"sa", {}, shorter_ms=AT_MOST_MS - 20), DetailedEvent(1, 1_015, b"sa", {}, shorter_ms=NO_OWN),
        DetailedEvent(2, 1_020, b"sa", {}, shorter_ms=AT_MOST_MS - 2), DetailedEvent(3, 1_030, b"sa", {}, shorter_ms=NO_OWN),
    ]  # fmt: skip
    points = replayed(events, Bounds(30, FAR, is_quiet_by_event=True, sessions=True, reads_details=True), [1, 4, 5, 30])

    assert [3, 3, 2, 2] == [point.records for point in points]


def test_sample_keeps_the_closing_events_of_its_groups() -> None:
    events = [DetailedEvent(at, 1_000 + at, b"s%d" % (at % 400), {"u": None}, at % 400 == at % 7) for at in range(4_000)]
    columns = Columns(now_ms=NOW_MS, capacity=1_500, reads_details=True)
    columns.add(0, events)
    columns.sort()

    assert columns.halvings
    assert columns.closing is not None
    closing = sum(event.closes for event in events if hash(event.group) % 2**64 < 2 ** (64 - columns.halvings))
    assert closing == int(columns.closing.sum())


def test_sample_keeps_the_quiet_periods_of_the_events_in_it() -> None:
    own = {b"s%d" % number: number % AT_MOST_MS for number in range(400)}
    events = [DetailedEvent(at, 1_000 + at, b"s%d" % (at % 400), {}, shorter_ms=own[b"s%d" % (at % 400)]) for at in range(4_000)]
    columns = Columns(now_ms=NOW_MS, capacity=1_500, reads_details=True, longest_own_ms=AT_MOST_MS)
    columns.add(0, events)
    columns.sort()

    assert columns.halvings
    assert columns.own_quiet_ms is not None
    kept = [AT_MOST_MS - one.shorter_ms for one in events if hash(one.group) % 2**64 < 2 ** (64 - columns.halvings)]
    assert (sorted(kept), len(events)) == (sorted(columns.own_quiet_ms.tolist()), columns.own_periods)
