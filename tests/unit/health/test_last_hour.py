"""The folding ratio of the last hour."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from streams_app.health.metrics import LastHour

MINUTE = 60_000
counted = st.lists(st.tuples(st.integers(0, 3 * 60 * MINUTE), st.integers(1, 5), st.integers(5, 50)), min_size=1).map(sorted)


@given(counted, st.integers(0, 2 * 60 * MINUTE))
def test_ratio_covers_the_records_of_sixty_minutes(items: list[tuple[int, int, int]], later_ms: int) -> None:
    hour = LastHour()
    for at_ms, records, events in items:
        hour.add(at_ms, records, events)
    now_ms = items[-1][0] + later_ms
    recent = [(records, events) for at_ms, records, events in items if at_ms // MINUTE > now_ms // MINUTE - 60]
    expected = 1 - sum(records for records, _ in recent) / sum(events for _, events in recent) if recent else math.nan

    assert repr(expected) == repr(hour.ratio(now_ms))


def test_hour_without_records_has_no_ratio() -> None:
    hour = LastHour()
    hour.add(0, 1, 10)

    assert [0.9, True] == [hour.ratio(59 * MINUTE), math.isnan(hour.ratio(60 * MINUTE))]


def test_old_minutes_are_dropped_without_a_query() -> None:
    hour = LastHour()
    for minute in range(1_000):
        hour.add(minute * MINUTE, 1, 10)

    assert 60 == len(hour._minutes)
