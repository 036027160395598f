"""Which candidates for the quiet period are tried where nobody names any (pure)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

WANTED: Final = 30
"""Candidates: some ten for each factor of a hundred, from a second to a day."""

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_SIXTIETHS: Final = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 45, 50)

ROUND_MS: Final = (
    *(1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100, 150, 200, 250, 300, 400, 500, 600, 800),
    *(int(value * _SECOND) for value in _SIXTIETHS),
    *(int(value * _MINUTE) for value in _SIXTIETHS),
    *(int(value * _HOUR) for value in (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 18)),
    *(int(value * _DAY) for value in (1, 1.5, 2, 3, 4, 5, 7, 10, 14, 21, 30, 60, 90, 180, 365)),
)
"""Durations that people would write, in rising order."""

_FEWEST_BELOW: Final = 3


def default_windows(span_ms: int, gaps_ms: tuple[int, int] | None, *, also_ms: int | None = None) -> tuple[int, ...]:
    """Candidates on a logarithmic scale of round durations.

    They begin at one second, or at the median of the gaps where that is shorter, and end with the first that folds all there is: a
    longer one than the longest gap makes no difference, nor does one longer than the range.

    Args:
        span_ms: Length of the range.
        gaps_ms: Of the times between neighbouring events of a group the median and the longest, as
            :meth:`streams_app.tuning.columns.Columns.gaps` tells them; None: no group has two events.
        also_ms: A candidate beside them: the quiet period that the fold has now.

    Returns:
        Some 30, fewer where the range is short; at least one.
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
    """The step whose ratio to a value is nearest to one."""
    return min(steps, key=lambda step: max(step / value, value / step))
