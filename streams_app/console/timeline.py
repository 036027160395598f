"""Draws the time line of a group: its records, the events of its open fold, now, and the bounds that close it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from streams_app.console.pages.group import EventList, GroupPage, GroupPart, RecordList
from streams_app.formatting import span

WIDTH: Final = 1_000.0
BUCKETS: Final = 160
AHEAD: Final = 0.12
"""Part of the time line behind the time at which the group closes."""

_ROUND_MS: Final = (
    (1_000, (1, 2, 5, 10, 15, 30)), (60_000, (1, 2, 5, 10, 15, 30)), (3_600_000, (1, 2, 3, 6, 12)), (86_400_000, (1, 2, 7)),
)  # fmt: skip
_STEPS_MS: Final = tuple(
    unit * count
    for unit, counts in (
        (1_000, (1, 2, 5, 10, 15, 30)),
        (60_000, (1, 2, 5, 10, 15, 30)),
        (3_600_000, (1, 2, 3, 6, 12)),
        (86_400_000, (1, 2, 7)),
    )
    for count in counts
)
_MOST_TICKS: Final = 7


class Bar(NamedTuple):
    """A span of time with a title."""

    x: float
    width: float
    title: str


class Tick(NamedTuple):
    """A moment with a text."""

    x: float
    text: str


class TimeLine(NamedTuple):
    """What is drawn, in a width of 1 000.

    Attributes:
        records: Records of the group, from their first to their last event.
        events: Events of the open fold: position and height from 0 to 1.
        open: The open fold, from its first event to now.
        wait: From now to the time at which it closes.
        now: Position of now.
        closes: Position of that time; None if the group is not open.
        axis: Marks relative to now.
    """

    records: list[Bar]
    events: list[tuple[float, float]]
    open: Bar | None
    wait: Bar | None
    now: float
    closes: float | None
    axis: list[Tick]


def time_line(page: GroupPage, part: GroupPart) -> TimeLine:
    """Return the time line of a group in one partition."""
    closes_ms = None if part.window is None else max(page.now_ms, next(one.at_ms for one in part.window.bounds if one.is_next))
    begin_ms = page.from_ms
    end_ms = closes_ms or page.now_ms
    end_ms += max(1_000, int((end_ms - begin_ms) * AHEAD))

    def x(at_ms: int) -> float:
        return round(WIDTH * min(1.0, max(0.0, (at_ms - begin_ms) / (end_ms - begin_ms))), 1)

    def bar(first_ms: int, last_ms: int, title: str) -> Bar:
        return Bar(x(first_ms), max(3.0, round(x(last_ms) - x(first_ms), 1)), title)

    records = [
        bar(row.first_event_ms, row.last_event_ms, f"{row.events:,} events, {row.reason}")
        for row in (page.records.rows if isinstance(page.records, RecordList) else [])
        if row.last_event_ms >= begin_ms
    ]
    times = part.events.times if isinstance(part.events, EventList) else []
    opened = None if part.window is None else bar(part.window.first_event_ms, page.now_ms, "open")
    wait = None if closes_ms is None else bar(page.now_ms, closes_ms, "closes if no event arrives")
    return TimeLine(
        records, heights([x(at_ms) for at_ms in times if at_ms >= begin_ms]), opened, wait, x(page.now_ms),
        None if closes_ms is None else x(closes_ms), axis(begin_ms, end_ms, page.now_ms),
    )  # fmt: skip


def heights(positions: Sequence[float]) -> list[tuple[float, float]]:
    """Return events as bars: those at about the same position are one bar, the higher the more there are."""
    counts = Counter(int(position * BUCKETS / WIDTH) for position in positions)
    most = max(counts.values(), default=1)
    return [((bucket + 0.5) * WIDTH / BUCKETS, 0.35 + 0.65 * count / most) for bucket, count in sorted(counts.items())]


def axis(begin_ms: int, end_ms: int, now_ms: int) -> list[Tick]:
    """Return marks at round distances from now."""
    step_ms = next((step for step in _STEPS_MS if (end_ms - begin_ms) / step <= _MOST_TICKS), _STEPS_MS[-1])
    first, last = -((now_ms - begin_ms) // step_ms), (end_ms - now_ms) // step_ms
    if last - first > 3 * _MOST_TICKS:
        return []
    found = []
    for number in range(first, last + 1):
        at_ms = now_ms + number * step_ms
        text = "now" if not number else f"{span(abs(number) * step_ms)} ago" if number < 0 else f"in {span(number * step_ms)}"
        found.append(Tick(round(WIDTH * (at_ms - begin_ms) / (end_ms - begin_ms), 1), text.replace(".0 s", " s")))
    return found
