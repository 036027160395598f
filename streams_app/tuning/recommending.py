"""Chooses the recommended quiet period, with the reason (pure)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import floor, log
from typing import Final

from streams_app.formatting import ROUND_MS, compact_size, counted, duration_text, span
from streams_app.tuning.points import Curve, Point, Recommendation

KNEE_GAIN: Final = 0.01
"""Minimum gain: doubling the quiet period is worthwhile if it saves at least this many records, as a fraction of the events."""

KNEE_SHARE: Final = 0.5
"""Minimum folding ratio of a knee, see :func:`recommend`, as a fraction of the best ratio.

The curve is also flat where the candidates are too short for any record to have two events; no knee is there.
"""

FEW_EVENTS: Final = 100
"""With fewer events, the recommendation warns that it is unreliable."""

_SMALLEST_UNIT: Final = 1_000
_EXACT_FROM: Final = 0.99


def recommend(
    curve: Curve,
    *,
    target_ratio: float | None = None,
    max_latency_ms: int | None = None,
    longest_ms: int | None = None,
    longest_by: str = "max_hold",
) -> Recommendation:
    """Choose the quiet period to recommend from the candidates of a curve; return it with the reason.

    With ``target_ratio`` alone, the shortest candidate that reaches the ratio is chosen. With ``max_latency_ms`` alone, it is the
    longest candidate that stays within the latency. With both, it is the shortest candidate that reaches the ratio; if that one
    exceeds the latency, the latency takes precedence, and the reason states the cost of both.

    Without either, the knee is chosen: the shortest candidate that folds at least half of what can be folded, and from which
    doubling the quiet period would save less than one record per hundred events.

    Args:
        max_latency_ms: Time that 99 of 100 events may wait at most; None if there is no limit.
        longest_ms: Maximum quiet period that the settings permit, in ms; None if there is none. Longer candidates are chosen only
            if all candidates are longer.
        longest_by: Name of the setting that limits the quiet period.
    """
    if not curve.points:
        return Recommendation(0, "No candidate was tried.")
    allowed = curve.points
    if longest_ms is not None:
        allowed = tuple(point for point in curve.points if point.quiet_ms <= longest_ms)
    found = _chosen(replace(curve, points=allowed or curve.points), target_ratio, max_latency_ms)
    if 0 < curve.events < FEW_EVENTS:
        found = replace(found, why=f"{counted(curve.events, 'event')} {_are(curve.events)} too few to rely on. {found.why}")
    if longest_ms is None or len(allowed) == len(curve.points):
        return found
    longest = duration_text(longest_ms)
    about = f"Candidates longer than {longest_by}, {longest}, are not considered."
    if not allowed:
        about = f"But {longest_by} is {longest}, and the quiet period must not be longer."
    return Recommendation(found.quiet_ms, f"{found.why} {about}")


def _chosen(curve: Curve, target_ratio: float | None, max_latency_ms: int | None) -> Recommendation:
    points = curve.points
    best = max(points, key=lambda point: (point.ratio, -point.quiet_ms))
    if not best.ratio:
        return Recommendation(points[0].quiet_ms, _nothing(curve))
    if target_ratio is not None and max_latency_ms is not None:
        return _both(curve, best, target_ratio, max_latency_ms)
    if target_ratio is not None:
        return _target(curve, best, target_ratio)
    return _knee(curve, best) if max_latency_ms is None else _limit(curve, max_latency_ms)


def _nothing(curve: Curve) -> str:
    if not curve.events:
        return "There are no events in this range, so no quiet period can be recommended."
    events = "the event" if curve.events == 1 else f"the {curve.events:,} events"
    return (
        f"No candidate folds anything: no group has two events within {_name(curve.points[-1])} that the bounds allow in one "
        f"record. A fold would only delay {events}."
    )


def _target(curve: Curve, best: Point, target: float) -> Recommendation:
    found = _reaching(curve.points, target)
    if found is None:
        return Recommendation(
            best.quiet_ms,
            f"No candidate folds {_percent(target)}: {_name(best)} is the shortest that folds the maximum, "
            f"{_folds(curve, best)}; {_costs(best)}{_judged(curve)}.",
        )
    return Recommendation(
        found.quiet_ms,
        f"{_name(found)} is the shortest candidate that folds at least {_percent(target)}: {_folds(curve, found)}; "
        f"{_costs(found)}{_judged(curve)}.",
    )


def _limit(curve: Curve, limit_ms: int) -> Recommendation:
    found = _within(curve.points, limit_ms)
    if found is None:
        found = min(curve.points, key=lambda point: (_wait_ms(point), point.quiet_ms))
        return Recommendation(
            found.quiet_ms,
            f"With no candidate, 99 of 100 events wait at most {duration_text(limit_ms)}: {_name(found)} comes "
            f"nearest and folds {_folds(curve, found)}; {_costs(found)}{_judged(curve)}.",
        )
    return Recommendation(
        found.quiet_ms,
        f"{_name(found)} is the longest candidate with which 99 of 100 events wait at most "
        f"{duration_text(limit_ms)}, and folds {_folds(curve, found)}; {_costs(found)}{_judged(curve)}.",
    )


def _both(curve: Curve, best: Point, target: float, limit_ms: int) -> Recommendation:
    reaching, within = _reaching(curve.points, target), _within(curve.points, limit_ms)
    if reaching is not None and _wait_ms(reaching) <= limit_ms:
        return Recommendation(
            reaching.quiet_ms,
            f"{_name(reaching)} is the shortest candidate that folds at least {_percent(target)}, and stays within "
            f"{duration_text(limit_ms)}: {_folds(curve, reaching)}; {_costs(reaching)}{_judged(curve)}.",
        )
    if reaching is None:
        most = f"the maximum, {_percent(best.ratio)}, takes {_name(best)}, with which {_costs(best)}"
    else:
        most = (
            f"to fold {_percent(target)} takes {_name(reaching)}, which folds {_percent(reaching.ratio)} and with "
            f"which {_costs(reaching)}"
        )
    if within is None:
        taken = min(curve.points, key=lambda point: (_wait_ms(point), point.quiet_ms))
        least = f"no candidate stays within {duration_text(limit_ms)}, and {_name(taken)}, which comes nearest,"
    else:
        taken = within
        least = f"{_name(taken)}, the longest within {duration_text(limit_ms)},"
    return Recommendation(
        taken.quiet_ms,
        f"{_percent(target)} and {duration_text(limit_ms)} cannot both be reached: {most}; {least} folds {_folds(curve, taken)}, "
        f"and {_costs(taken)}{_judged(curve)}.",
    )


def _knee(curve: Curve, best: Point) -> Recommendation:
    points = [point for point in curve.points if point.ratio >= KNEE_SHARE * best.ratio]
    found = next(point for point in points if _ratio_at(curve.points, 2 * point.quiet_ms) - point.ratio < KNEE_GAIN)
    text = _name(found)
    if found is curve.points[-1] and found.ratio - _ratio_at(curve.points, found.quiet_ms // 2) >= KNEE_GAIN:
        reason = f"{text}, the longest candidate, is where the curve still rises: it folds {_folds(curve, found)}"
    else:
        reason = (
            f"{text} is the knee: it folds {_folds(curve, found)}, and doubling it would save less than one more record per "
            "hundred events"
        )
        if best.ratio - found.ratio >= KNEE_GAIN:
            reason += f" (the maximum, {_percent(best.ratio)}, takes {_name(best)})"
    return Recommendation(found.quiet_ms, f"{reason}; {_costs(found)}{_judged(curve)}.")


def _reaching(points: Sequence[Point], target: float) -> Point | None:
    return next((point for point in points if point.ratio >= target), None)


def _within(points: Sequence[Point], limit_ms: int) -> Point | None:
    return next((point for point in reversed(points) if _wait_ms(point) <= limit_ms), None)


def _wait_ms(point: Point) -> int:
    return point.quiet_ms if point.latency_p99_ms is None else point.latency_p99_ms


def _ratio_at(points: Sequence[Point], quiet_ms: int) -> float:
    """Return the folding ratio at a quiet period, interpolated between two candidates on a logarithmic scale."""
    if quiet_ms <= points[0].quiet_ms:
        return points[0].ratio
    for before, after in pairwise(points):
        if quiet_ms <= after.quiet_ms:
            way = log(quiet_ms / before.quiet_ms) / log(after.quiet_ms / before.quiet_ms)
            return before.ratio + way * (after.ratio - before.ratio)
    return points[-1].ratio


# ---- texts


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _name(point: Point) -> str:
    return duration_text(point.quiet_ms)


def _percent(ratio: float) -> str:
    """Format a ratio, rounded down, so that 99.99 % never becomes 100 %."""
    steps = 10_000 if ratio >= _EXACT_FROM else 1_000
    return f"{100 * floor(ratio * steps + 1e-6) / steps:g}%"


def _folds(curve: Curve, point: Point) -> str:
    return f"{_percent(point.ratio)} ({curve.events:,} events into {counted(point.records, 'record')})"


def _costs(point: Point) -> str:
    if point.latency_p99_ms is None:
        waits = f"a record comes {_name(point)} after its last event (how long earlier events wait is unknown)"
    else:
        waits = f"99 of 100 events wait at most {_wait(point.latency_p99_ms)}"
        if point.latency_p50_ms is not None:
            waits = f"half of the events wait at most {_wait(point.latency_p50_ms)}, {waits.replace(' events wait', '')}"
    if point.peak_open_groups is None:
        return waits
    room = f", some {compact_size(point.redis_bytes)} of Redis" if point.redis_bytes else ""
    verb = _are(point.peak_open_groups)
    return f"{waits}, and at most {counted(point.peak_open_groups, 'group')} {verb} open at once{room}"


def _wait(wait_ms: int) -> str:
    return f"{wait_ms} ms" if wait_ms < _SMALLEST_UNIT else span(wait_ms)


def _judged(curve: Curve) -> str:
    if curve.sample is None:
        return ""
    groups, error = counted(curve.sample.groups, "group"), curve.sample.ratio_error
    if error is None:
        return " (estimated from the beginning of the range, because a few groups have nearly all events)"
    return f" (estimated from {groups} chosen by hash; standard error of the ratio {100 * error:.2g} points)"


WANTED: Final = 30
"""Number of candidates from a second to a day: about ten for each factor of a hundred."""

_SECOND: Final = 1_000

_FEWEST_BELOW: Final = 3


def default_windows(span_ms: int, gaps_ms: tuple[int, int] | None, *, also_ms: int | None = None) -> tuple[int, ...]:
    """Return some 30 candidate quiet periods in ms, at least one: round durations on a logarithmic scale, and ``also_ms``.

    They begin at one second, or at the median gap if that is shorter. They end with the first candidate that folds all events: one
    longer than the longest gap, or than the range, would give the same records.

    Args:
        span_ms: Length of the range, in ms.
        gaps_ms: As :meth:`streams_app.tuning.columns.Columns.gaps` returns them.
        also_ms: The configured quiet period; None if there is none.
    """
    median_ms, longest_ms = gaps_ms or (_SECOND, 0)
    low = bisect_right(ROUND_MS, max(1, min(median_ms, _SECOND))) - 1
    high = bisect_left(ROUND_MS, max(1, min(longest_ms, span_ms)))
    high = min(max(high, low + _FEWEST_BELOW), len(ROUND_MS) - 1)
    steps = ROUND_MS[low : high + 1]
    found = {also_ms} if also_ms else set()
    if len(steps) <= WANTED:
        return tuple(sorted(found | set(steps)))
    factor = steps[-1] / steps[0]
    wanted = (steps[0] * factor ** (number / (WANTED - 1)) for number in range(WANTED))
    return tuple(sorted(found | {_nearest(steps, value) for value in wanted}))


def _nearest(steps: tuple[int, ...], value: float) -> int:
    return min(steps, key=lambda step: max(step / value, value / step))
