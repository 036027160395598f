"""Replays a stream with several ways to choose its quiet period, and computes what each of them gives (pure).

An event carries the quiet period that holds when it arrives, as an event that sets its own: so :func:`.curve_of` computes the exact
records and waits also for a quiet period that changes. The group of an event closes by the period of its last event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2
from typing import Final

import numpy as np

from benchmarks.quiet_period.shapes import DAY_MS, HOUR_MS, Ints, Stream
from streams_app.folding.core.auto_quiet import POINT, AutoQuiet, AutoQuietGoal, QuietChange
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import DetailedEvent, FoldInput
from streams_app.tuning.columns import Columns
from streams_app.tuning.points import Curve, Point
from streams_app.tuning.recommending import recommend
from streams_app.tuning.replay import curve_of

HOLD_MS: Final = 6 * HOUR_MS
LIMITS: Final = {"at_least_ms": 10_000, "at_most_ms": HOUR_MS, "default_ms": HOUR_MS // 4}
GOALS: Final = {"knee": AutoQuietGoal(**LIMITS), "target_ratio": AutoQuietGoal(**LIMITS, target_ratio=0.95)}
MAX_LATENCY_MS: Final = 20 * 60_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """What each way to choose the quiet period of a stream gives, from an hour after the beginning.

    Attributes:
        best: The best fixed quiet period of the whole stream, known afterwards.
        default: The quiet period that is never changed.
        daily: Each day the best fixed one of the day before.
        auto: The one that sets itself, which has learned nothing at the beginning.
        changes: Changes of ``auto`` after the first hour, each hour.
        reversals: Changes in the other direction within an hour of the one before.
    """

    best: Point
    default: Point
    daily: Point
    auto: Point
    changes: float
    reversals: int
    target_ratio: float | None = None

    def loss(self, way: str) -> float:
        """Return by how much the folding ratio of ``daily`` or ``auto`` is below that of the best, or below the target."""
        ratio: float = getattr(self, way).ratio
        return min(self.best.ratio, self.target_ratio or 1.0) - ratio


def compare(stream: Stream, begin_ms: int, goal: AutoQuietGoal) -> Comparison:
    """Compare for one stream.

    Args:
        begin_ms: When the quiet period begins to set itself. Events before are only the day before of ``daily``.
    """
    later, end_ms = _from(stream, begin_ms + HOUR_MS), int(stream.stamps_ms.max())
    curve = _curve(later, goal.candidates, HOLD_MS)
    daily_ms = []
    for day_ms in range(begin_ms, end_ms + 1, DAY_MS):
        before = _from(stream, day_ms - DAY_MS, day_ms)
        quiet_ms = best_fixed(_curve(before, goal.candidates, HOLD_MS), goal) if len(before.groups) else goal.default_ms
        daily_ms.append(np.full(len(_from(stream, day_ms, day_ms + DAY_MS).groups), quiet_ms))
    auto_ms, changes = _auto(_from(stream, begin_ms), goal)
    counted = [change for change in changes if change.at_ms >= begin_ms + HOUR_MS]
    hours = max(1.0, (end_ms - begin_ms) / HOUR_MS - 1)
    points = {point.quiet_ms: point for point in curve.points}
    return Comparison(
        points[best_fixed(curve, goal)], points[goal.default_ms],
        _varying(later, np.concatenate(daily_ms)[-len(later.groups) :], goal),
        _varying(later, auto_ms[-len(later.groups) :], goal), len(counted) / hours, _reversals(changes, begin_ms + HOUR_MS),
        goal.target_ratio,
    )  # fmt: skip


def best_fixed(curve: Curve, goal: AutoQuietGoal) -> int:
    """Return the fixed quiet period, in ms, that is best for a goal: the knee is that of :class:`.AutoQuietGoal`."""
    if goal.target_ratio is not None:
        return recommend(curve, target_ratio=goal.target_ratio).quiet_ms or 0
    return max(curve.points, key=lambda point: point.ratio - POINT * log2(point.quiet_ms)).quiet_ms


def limited_latency(stream: Stream, begin_ms: int) -> tuple[Point, Point]:
    """Return two ways to limit the wait of 99 of 100 events.

    Returns:
        The longest fixed quiet period that does so, known afterwards, with :data:`HOLD_MS`. Then the knee that sets itself, with
        the limit as ``max_hold``.
    """
    goal = GOALS["knee"]
    later = _from(stream, begin_ms + HOUR_MS)
    curve = _curve(later, goal.candidates, HOLD_MS)
    fixed_ms = recommend(curve, max_latency_ms=MAX_LATENCY_MS).quiet_ms
    auto_ms, _ = _auto(_from(stream, begin_ms), goal)
    fixed = next(point for point in curve.points if point.quiet_ms == fixed_ms)
    return fixed, _varying(later, auto_ms[-len(later.groups) :], goal, hold_ms=MAX_LATENCY_MS)


def _from(stream: Stream, from_ms: int, to_ms: int = 2**62) -> Stream:
    """Return the events of a time range; an event with an earlier timestamp than the one before it counts at the same time."""
    first, end = np.searchsorted(np.maximum.accumulate(stream.stamps_ms), [from_ms, to_ms])
    return Stream(stream.stamps_ms[first:end], stream.groups[first:end])


def _auto(stream: Stream, goal: AutoQuietGoal) -> tuple[Ints, list[QuietChange]]:
    """Return the quiet period after each event, in ms, and its changes."""
    auto, changes = AutoQuiet(goal), []
    periods_ms = np.empty(len(stream.groups), np.int64)
    for at, (stamp_ms, member) in enumerate(zip(stream.stamps_ms.tolist(), _members(stream), strict=True)):
        if change := auto.observe(member, stamp_ms):
            changes.append(change)
        periods_ms[at] = auto.quiet_ms
    return periods_ms, changes


def _members(stream: Stream) -> list[bytes]:
    return [b"sgroup_%d" % group for group in stream.groups.tolist()]


def _curve(stream: Stream, candidates: Sequence[int], hold_ms: int, own_ms: Ints | None = None) -> Curve:
    """Replay a stream for fixed candidates, or with a quiet period of its own for each event."""
    longest_ms = None if own_ms is None else int(own_ms.max())
    columns = Columns(now_ms=2**50, capacity=len(stream.groups) + 1, longest_own_ms=longest_ms)
    numbered = enumerate(zip(stream.stamps_ms.tolist(), _members(stream), strict=True))
    events: list[FoldInput] = [(at, stamp_ms, member, 1) for at, (stamp_ms, member) in numbered]
    if own_ms is not None and longest_ms is not None:
        shorter = (longest_ms - own_ms).tolist()
        events = [DetailedEvent(*event[:3], {}, shorter_ms=less) for event, less in zip(events, shorter, strict=True)]
    columns.add(0, events)
    return curve_of("events", columns, Bounds(1, hold_ms, sessions=True), candidates)


def _varying(stream: Stream, own_ms: Ints, goal: AutoQuietGoal, hold_ms: int = HOLD_MS) -> Point:
    return _curve(stream, [goal.default_ms], hold_ms, own_ms).points[0]


def _reversals(changes: Sequence[QuietChange], from_ms: int) -> int:
    count = 0
    for before, after in pairwise(changes):
        is_back = (before.after_ms > before.before_ms) != (after.after_ms > after.before_ms)
        count += is_back and after.at_ms >= from_ms and after.at_ms - before.at_ms < HOUR_MS
    return count
