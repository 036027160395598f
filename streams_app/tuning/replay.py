"""What each candidate for the quiet period would have done to a range of events (pure).

The rules are those of :class:`streams_app.folding.core.model.MemoryShard` with ``sessions``, applied to columns: a gap longer than
X ends a session, and within one the other bounds end records. A test compares every number with a replay event by event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streams_app.folding.core.closing import Bounds
from streams_app.tuning.columns import Columns
from streams_app.tuning.points import Curve, Point, Sample
from streams_app.tuning.splitting import Positions, chained, next_starts

PREFIX_BYTES: Final = 60
"""Of ``{social/account-metrics/post-metric-updated/3}:v2:group:`` and the like."""

_BLOCK: Final = 1 << 19


def _silent(_done: int, _total: int) -> None:
    """Where nobody looks at the progress."""


def curve_of(
    fold: str,
    columns: Columns,
    bounds: Bounds,
    windows: Sequence[int],
    progress: Callable[[int, int], None] = _silent,
    *,
    prefix_bytes: int = PREFIX_BYTES,
) -> Curve:
    """Replays a range for every candidate.

    What is open at the end of the range counts as one record a group, and closes when it is due.

    Args:
        fold: Name of the fold.
        columns: The events; they are sorted here.
        bounds: What closes groups beside the quiet period; its own one is not looked at.
        windows: Candidates, ms.
        progress: Called with how many steps are done, and how many there are.
        prefix_bytes: Length of what stands before the member in the Redis key of a group.
    """
    candidates = sorted(set(windows))
    columns.sort()
    progress(1, len(candidates) + 1)
    replay = _Replay(columns, bounds)
    points = []
    for number, quiet_ms in enumerate(candidates, 2):
        points.append(replay.point(quiet_ms))
        progress(number, len(candidates) + 1)
    groups = round(replay.groups / columns.share)
    sample = None
    if columns.halvings:
        sample = Sample(columns.share, len(columns.scores), replay.groups, replay.ratio_error)
    return Curve(fold, columns.events, groups, columns.from_ms, columns.to_ms, tuple(points), sample)


class _Replay:
    """The columns of one range, and what does not depend on the candidate."""

    def __init__(self, columns: Columns, bounds: Bounds) -> None:
        self.columns = columns
        self.bounds = bounds
        self.ratio_error = 0.0
        self._hashes, self._scores = columns.hashes, columns.scores
        self._following = next_starts(columns, bounds) if len(self._scores) else np.empty(0, np.int32)
        self.groups = len(self._starts(1 << 62))

    def point(self, quiet_ms: int) -> Point:
        """Replays one candidate."""
        columns = self.columns
        if not len(self._scores):
            return Point(quiet_ms, 0, 0.0, None, None, None, 0, 0)
        starts = self._records(quiet_ms)
        closes = self._closes(starts, quiet_ms)
        records = round(len(starts) / columns.share)
        latencies = self._latencies(starts, closes)
        peak = round(self._peak(starts, closes) / columns.share)
        return Point(quiet_ms, records, 1 - records / columns.events, *latencies, peak, 0)

    def _starts(self, quiet_ms: int) -> Positions:
        """Where the sessions begin: with each group, and after each gap that is longer than the quiet period."""
        found = [np.zeros(min(1, len(self._scores)), np.int64)]
        for begin in range(1, len(self._scores), _BLOCK):
            end = min(begin + _BLOCK, len(self._scores))
            is_new = np.diff(self._scores[begin - 1 : end]) > quiet_ms
            is_new |= self._hashes[begin:end] != self._hashes[begin - 1 : end - 1]
            found.append(np.flatnonzero(is_new) + begin)
        return np.concatenate(found).astype(np.int32)

    def _ends(self, starts: Positions) -> Positions:
        return np.append(starts[1:], np.int32(len(self._scores)))

    def _records(self, quiet_ms: int) -> Positions:
        """Where the records begin."""
        starts = self._starts(quiet_ms)
        ends = self._ends(starts)
        is_parted = self._following[starts] < ends
        if not is_parted.any():
            return starts
        found = np.concatenate([starts, chained(starts[is_parted], ends[is_parted], self._following)])
        found.sort()
        return found

    def _closes(self, starts: Positions, quiet_ms: int) -> NDArray[np.int64]:
        """When each record closes, ms."""
        scores, ends = self._scores, self._ends(starts)
        opened, last = scores[starts], scores[ends - 1]
        closes = np.minimum(last + quiet_ms, opened + self.bounds.hold_ms)
        after = np.minimum(ends, len(scores) - 1)
        if self.columns.sets.may_close:
            # Neither silence nor hold ended the record before the next event of its group: its names did, at the score of that one.
            following = scores[after]
            by_names = (ends < len(scores)) & (self._hashes[after] == self._hashes[starts])
            by_names &= (following <= last + quiet_ms) & (following < opened + self.bounds.hold_ms)
            closes = np.where(by_names, following, closes)
        if self.bounds.max_events:
            closes = np.where(ends - starts == self.bounds.max_events, last, closes)
        return closes

    def _latencies(self, starts: Positions, closes: NDArray[np.int64]) -> tuple[int, int, int]:
        """The percentiles of the time from an event to its record, by nearest rank."""
        events = len(self._scores)
        waits = np.repeat(closes, np.diff(starts, append=events)) - self._scores
        ranks = [-(-events * percent // 100) - 1 for percent in (50, 95, 99)]
        waits.partition(ranks)
        return int(waits[ranks[0]]), int(waits[ranks[1]]), int(waits[ranks[2]])

    def _peak(self, starts: Positions, closes: NDArray[np.int64]) -> int:
        """Most groups open in the same instant; a group is open from its first event to the moment it closes, both included."""
        opened = self._scores[starts]
        # A group that opens again in the instant in which it closed was open all the time.
        is_again = (self._hashes[starts[1:]] == self._hashes[starts[:-1]]) & (opened[1:] <= closes[:-1])
        again = np.flatnonzero(is_again)
        opens = np.sort(np.delete(opened, again + 1))
        gone = np.searchsorted(np.sort(np.delete(closes, again)), opens, "left")
        return int((np.arange(1, len(opens) + 1) - gone).max())
