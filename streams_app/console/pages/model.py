"""What several pages consist of: problems, figures with their last hour, states of boxes (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from streams_app.console.reading.alerts import Severity
from streams_app.console.reading.history import EVERY_MS, SLOTS, History

State = Literal["ok", "idle", "attention", "trouble", "unknown"]
"""How a box is; each is shown by a color, a sign and a word."""

WINDOWS: Final = ((60, 1), (180, 3), (SLOTS, 12))
"""Lengths of charts in slots of the history, each with the slots in one of its 60 points: 5 minutes, 15 minutes, an hour."""

Unit = Literal["events/s", "records/s", "groups", "events", "seconds", "share", "records", "entries/s", "values/s", "bytes"]


class Problem(msgspec.Struct, frozen=True):
    """A reason why not all is well.

    Attributes:
        alert: Name of the alert in ``deploy/alerts.yml``; empty if it is none.
        link: Path of the page that shows more; empty if there is none.
    """

    severity: Severity
    text: str
    link: str = ""
    alert: str = ""


class Series(msgspec.Struct, frozen=True):
    """A series of a chart; ``points`` are at equal distances, and None where the value is unknown."""

    name: str
    points: list[float | None]


class Chart(msgspec.Struct, frozen=True):
    """Lines over the last time, in one unit.

    Attributes:
        now: The present value of the first line; None: unknown.
        hint: What the value means, and when to act.
        from_ms: Time of the first point.
    """

    key: str
    title: str
    unit: Unit
    lines: list[Series]
    from_ms: int
    step_ms: int
    now: float | None
    hint: str


class Rule(msgspec.Struct, frozen=True):
    """A part of a definition in plain words."""

    what: str
    text: str
    link: str = ""


class Figure(msgspec.Struct, frozen=True):
    """A number at which people glance, with its last time as a small chart."""

    key: str
    title: str
    value: float | None
    unit: Unit
    hint: str
    points: list[float | None]


class Window(msgspec.Struct, frozen=True):
    """The time that charts show: the shortest of :data:`WINDOWS` that has all samples.

    Attributes:
        slots: Its length in slots of the history.
        step: Slots in one point.
        from_ms: Time of the first point.
    """

    slots: int
    step: int
    from_ms: int

    @property
    def step_ms(self) -> int:
        return self.step * EVERY_MS

    @property
    def span_ms(self) -> int:
        return self.slots * EVERY_MS


def window_of(history: History, now_ms: int) -> Window:
    """Return the time that charts show now."""
    age = (now_ms - history.since_ms(now_ms)) // EVERY_MS
    slots, step = next((window for window in WINDOWS if window[0] >= age), WINDOWS[-1])
    return Window(slots, step, (now_ms // EVERY_MS - slots + step) * EVERY_MS)


def ratio_points(history: History, now_ms: int, window: Window, labels: Mapping[str, str]) -> list[float | None]:
    """Return the folding ratio in each point of a window: 1 - records / events that they contain."""
    records = history.rate("records_emitted_total", now_ms, labels, slots=window.slots, step=window.step)
    events = history.rate("events_emitted_total", now_ms, labels, slots=window.slots, step=window.step)
    return [ratio(one, many) for one, many in zip(records, events, strict=True)]


def ratio(records: float | None, events: float | None) -> float | None:
    """Return the folding ratio of counts or rates; None if nothing was emitted."""
    return None if records is None or not events else max(0.0, 1 - records / events)


def line_chart(
    key: str, title: str, unit: Unit, hint: str, points: Sequence[float | None], window: Window, now: float | None = None
) -> Chart:
    """Return a chart of one line.

    Args:
        now: The present value; None: that of the last point that is known.
    """
    last = next((point for point in reversed(points) if point is not None), None)
    found = last if now is None else now
    return Chart(key, title, unit, [Series(title, list(points))], window.from_ms, window.step_ms, found, hint)
