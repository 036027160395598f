"""Computes the records, latency and memory that each candidate quiet period would have given for past events (pure).

A candidate is evaluated by the rules of :class:`streams_app.folding.core.model.MemoryShard` with the backlog policy ``sessions``. A
*session* is the events of a group between two gaps that are longer than the candidate. It becomes one record, or several if
``max_hold`` or a bound on its contents closes the group earlier. The rules are applied to arrays instead of single events; a test
compares every number with a replay event by event.

If events set their own quiet period, the candidate applies only to events that set none. A quiet period that sets itself is
evaluated beside the candidates, with the one that each event has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streams_app.folding.core.closing import Bounds
from streams_app.folding.store.codec import packs_groups
from streams_app.tuning.columns import Columns, Times
from streams_app.tuning.memory import RecordSample, max_open
from streams_app.tuning.points import AutoPoint, Curve, CurveSample, Point
from streams_app.tuning.splitting import Positions, chained, next_starts

PREFIX_BYTES: Final = 60
"""Length of ``{social/account-metrics/post-metric-updated/3}:v2:group:`` and similar prefixes."""

FOR_EVER_MS: Final = 1 << 60
"""Maximum duration, in ms; longer durations are reduced to it."""

_BLOCK: Final = 1 << 19
_MAX_SHORT: Final = 2**32 - 1


def _silent(_done: int, _total: int) -> None: ...


def curve_of(
    fold: str,
    columns: Columns,
    bounds: Bounds,
    windows: Sequence[int],
    progress: Callable[[int, int], None] = _silent,
    *,
    prefix_bytes: int = PREFIX_BYTES,
) -> Curve:
    """Replay the events once for each candidate quiet period; return the records, latency and memory that each one gives.

    A group that is still open at the end of the range counts as one record, which closes when it is due.

    Args:
        bounds: The bounds that close groups; their quiet period is ignored.
        windows: Candidates for the quiet period, in ms. If events set their own, candidates for the default.
        progress: Called with the number of finished steps and the total number of steps.
        prefix_bytes: Length of the part of a group's Redis key that precedes the group key, for the estimate of memory.
    """
    candidates = sorted(set(windows))
    columns.sort()
    progress(1, len(candidates) + 1)
    replay = _Replay(columns, bounds, prefix_bytes)
    points = []
    for number, quiet_ms in enumerate(candidates, 2):
        points.append(replay.point(quiet_ms))
        progress(number, len(candidates) + 1)
    groups, sample = replay.groups, None
    if columns.share * columns.part < 1:
        error = None if columns.is_cut else replay.ratio_error
        sample = CurveSample(columns.share * columns.part, len(columns.after_ms), groups, error)
    auto = None
    if columns.auto is not None:
        auto = AutoPoint(replay.auto_point(columns.auto.goal.default_ms), columns.auto.changes, columns.auto.last_ms)
    numbers = columns.events, round(groups / columns.share), columns.from_ms, columns.to_ms
    return Curve(fold, *numbers, tuple(points), sample, columns.own_periods, auto)


class _Replay:
    """Replays the same events for candidate quiet periods in rising order; each candidate reuses the sessions of the one before.

    Large arrays are filled block by block: with ten million events, eight unneeded bytes for each are 80 MB.
    """

    def __init__(self, columns: Columns, bounds: Bounds, prefix_bytes: int) -> None:
        self.columns = columns
        self._prefix_bytes = prefix_bytes
        self.bounds = bounds
        self.ratio_error = 0.0
        self._firsts, self._after_ms = columns.firsts, columns.after_ms
        self._closing, self._own_quiet_ms = columns.closing, columns.own_quiet_ms
        self._hold_ms = min(bounds.hold_ms, FOR_EVER_MS)
        self._following = next_starts(columns, bounds)
        columns.forget_numbers()
        self._sessions = _first_sessions(self._firsts, self._after_ms)
        self.groups = int(np.count_nonzero(self._firsts))

    def point(self, quiet_ms: int) -> Point:
        columns = self.columns
        if not len(self._after_ms):
            return Point(quiet_ms, 0, 0.0, None, None, None, None, None, 0, 0)
        limited_ms = min(quiet_ms, FOR_EVER_MS)
        self._sessions = self._longer(limited_ms)
        starts, early = self._records()
        closes = self._closes(starts, early, limited_ms)
        latencies = self._latencies(starts, early, closes)
        some = RecordSample(columns, starts, closes, early)
        open_groups, instant_ms = self._peak(starts, closes)
        self._judge(starts)
        records = min(columns.events, round(len(starts) / columns.share / columns.part))
        peak = round(open_groups / columns.share)
        redis_bytes = round(peak * some.mean_bytes(instant_ms, self._prefix_bytes, packs=packs_groups(self.bounds)))
        return Point(quiet_ms, records, 1 - records / columns.events, *latencies, peak, redis_bytes)

    def auto_point(self, default_ms: int) -> Point:
        """Return what the quiet period gives if it sets itself; the candidates must be replayed before."""
        self._own_quiet_ms = self.columns.auto_quiet_ms
        self._sessions = _first_sessions(self._firsts, self._after_ms)
        return self.point(default_ms)

    def _judge(self, starts: Positions) -> None:
        """Update the standard error of the ratio, if only a sample of the groups was used.

        Each group was sampled with the same probability p, so the variance of their number of records divided by p is the sum of
        the squared record counts of the groups, times (1 - p) / p² (Horvitz and Thompson).
        """
        share = self.columns.share
        if share == 1:
            return
        squares, rest = 0.0, 0
        for begin in range(0, len(starts), _BLOCK):
            block = starts[begin : begin + _BLOCK]
            firsts = np.flatnonzero(self._firsts[block])
            of_groups = np.diff(firsts, prepend=-rest, append=len(block)).astype(np.float64)
            # The last group may continue in the next block.
            rest = int(of_groups[-1])
            squares += float(of_groups[:-1] @ of_groups[:-1])
        error = sqrt((squares + rest * rest) * (1 - share)) / share / self.columns.events
        self.ratio_error = max(self.ratio_error, error)

    def _longer(self, quiet_ms: int) -> Positions:
        """Return the beginnings of sessions for a longer quiet period than the one before: a part of the former beginnings."""
        found, kept = self._sessions, 0
        for begin in range(0, len(found), _BLOCK):
            at = found[begin : begin + _BLOCK]
            after_ms = self._after_ms
            gaps = after_ms[at].astype(np.int64) - after_ms[at - 1]
            is_session = self._firsts[at] | (gaps > self._quiet_after(at - 1, quiet_ms))
            end = kept + int(np.count_nonzero(is_session))
            found[kept:end] = at[is_session]
            kept = end
        return found[:kept]

    def _quiet_after(self, positions: Positions, quiet_ms: int) -> NDArray[np.int64] | int:
        """Return the quiet period after each of these events, in ms; one number for all if events do not set their own."""
        if self._own_quiet_ms is None:
            return quiet_ms
        own_ms = self._own_quiet_ms[positions].astype(np.int64)
        return np.where(own_ms > 0, own_ms, quiet_ms)

    def _ends(self, starts: Positions) -> Positions:
        return np.append(starts[1:], np.int32(len(self._after_ms)))

    def _records(self) -> tuple[Positions, NDArray[np.bool_] | None]:
        """Return the positions at which records begin, and which of the records are early; None if the fold makes no early ones."""
        starts = self._split_sessions()
        return self._with_early(starts) if self.bounds.leading else (starts, None)

    def _split_sessions(self) -> Positions:
        """Return the beginnings of all sessions, and of their parts if bounds split them."""
        starts, following = self._sessions, self._following
        if following is None:
            return starts
        ends = self._ends(starts)
        is_parted = following[starts] < ends
        if not is_parted.any():
            return starts
        found = np.concatenate([starts, *chained(starts[is_parted], ends[is_parted], following)])
        found.sort()
        return found

    def _with_early(self, starts: Positions) -> tuple[Positions, NDArray[np.bool_]]:
        """Apply ``leading``: make the first event of each part of a session one record, and its other events, if any, a second one.

        The first record is early, unless its event closes the group by ``close_when``. A group opens at the beginning of a part and
        stays open until the last event of the part; :func:`next_starts` has ensured this.

        Returns:
            The beginnings of all records, and whether each record is early.
        """
        events = np.int32(len(self._after_ms))
        is_followed = np.empty(len(starts), bool)
        is_followed[:-1] = starts[1:] - starts[:-1] > 1
        is_followed[-1] = events - starts[-1] > 1
        found = np.empty(len(starts) + int(np.count_nonzero(is_followed)), np.int32)
        early = np.zeros(len(found), bool)
        used = 0
        for begin in range(0, len(starts), _BLOCK):
            firsts, followed = starts[begin : begin + _BLOCK], is_followed[begin : begin + _BLOCK]
            slots = used + np.arange(len(firsts)) + np.cumsum(followed) - followed
            found[slots] = firsts
            found[slots[followed] + 1] = firsts[followed] + 1
            early[slots] = True if self._closing is None else ~self._closing[firsts]
            used = int(slots[-1]) + 1 + int(followed[-1])
        return found, early

    def _closes(self, starts: Positions, early: NDArray[np.bool_] | None, quiet_ms: int) -> Times:
        """Return the time at which the group of each record closes, in ms after the earliest event of the sample.

        After an early record, the group stays open until its next event, or until it closes without a record.
        """
        longest_ms = max(quiet_ms, 0 if self._own_quiet_ms is None else int(self._own_quiet_ms.max()))
        found = _room(len(starts), self.columns.to_ms - self.columns.from_ms + min(longest_ms, self._hold_ms))
        for begin in range(0, len(starts), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            after = starts[begin + _BLOCK] if begin + _BLOCK < len(starts) else np.int32(len(self._after_ms))
            of_block = None if early is None else early[block]
            found[block] = self._closes_of(starts[block], np.append(starts[block][1:], after), of_block, quiet_ms)
        return found

    def _closes_of(
        self, starts: Positions, ends: Positions, early: NDArray[np.bool_] | None, quiet_ms: int
    ) -> NDArray[np.int64]:  # fmt: skip
        after_ms, hold_ms = self._after_ms, self._hold_ms
        opened, last = after_ms[starts].astype(np.int64), after_ms[ends - 1].astype(np.int64)
        quiet_due, hold_due = last + self._quiet_after(ends - 1, quiet_ms), opened + hold_ms
        closes = np.minimum(quiet_due, hold_due)
        if self.columns.sets.may_close or self.bounds.max_bytes or early is not None:
            # If neither silence nor hold ended a record before the next event of its group, a bound on contents did, at that score.
            after = np.minimum(ends, len(after_ms) - 1)
            following = after_ms[after].astype(np.int64)
            by_names = ~self._firsts[after] & (ends < len(after_ms))
            by_names &= (following <= quiet_due) & (following < hold_due)
            closes = np.where(by_names, following, closes)
        if self.bounds.max_events:
            is_full = ends - starts == self.bounds.max_events
            closes = np.where(is_full if early is None else is_full & ~early, last, closes)
        if self._closing is not None:
            closes = np.where(self._closing[ends - 1], last, closes)
        return closes

    def _latencies(
        self, starts: Positions, early: NDArray[np.bool_] | None, closes: Times
    ) -> tuple[int, int, int, int, int]:  # fmt: skip
        """Return the times from an event to its record: P50, P95 and P99 (by nearest rank), the mean and the maximum, in ms."""
        events = len(self._after_ms)
        waits = _room(events, self._hold_ms)
        for begin in range(0, events, _BLOCK):
            end = min(begin + _BLOCK, events)
            # A number of another type would make numpy copy all starts.
            first = int(np.searchsorted(starts, np.int32(begin), "right")) - 1
            last = int(np.searchsorted(starts, np.int32(end)))
            counts = np.diff(starts[first + 1 : last], prepend=begin, append=end)
            emitted = closes[first:last]
            if early is not None:
                emitted = np.where(early[first:last], self._after_ms[starts[first:last]], emitted)
            waits[begin:end] = np.repeat(emitted, counts) - self._after_ms[begin:end]
        mean_ms, max_ms = round(float(waits.mean(dtype=np.float64))), int(waits.max())
        ranks = [-(-events * percent // 100) - 1 for percent in (50, 95, 99)]
        waits.partition(ranks)
        return int(waits[ranks[0]]), int(waits[ranks[1]]), int(waits[ranks[2]]), mean_ms, max_ms

    def _peak(self, starts: Positions, closes: Times) -> tuple[int, int]:
        """Return the largest number of groups that are open at the same time, and that time; overwrites ``closes``.

        A group is open up to and including its time in ``closes``. Times are in ms after the earliest event of the sample.
        """
        opens = np.empty_like(closes)
        used = shut = 0
        is_first_reopened = False
        for begin in range(0, len(starts), _BLOCK):
            end = min(begin + _BLOCK, len(starts))
            opened = self._after_ms[starts[begin : end + 1]]
            # A group that reopens in the instant in which it closed counts as open without a break.
            is_reopened = np.zeros(end - begin + 1, bool)
            is_reopened[0] = is_first_reopened
            if self._following is not None:
                is_reopened[1 : len(opened)] = ~self._firsts[starts[begin + 1 : end + 1]] & (
                    opened[1:] <= closes[begin:end][: len(opened) - 1]
                )
            is_first_reopened = bool(is_reopened[-1])
            opened, closed = opened[: end - begin][~is_reopened[:-1]], closes[begin:end][~is_reopened[1:]]
            opens[used : used + len(opened)], closes[shut : shut + len(closed)] = opened, closed
            used, shut = used + len(opened), shut + len(closed)
        return max_open(opens[:used], closes[:shut])


def _first_sessions(firsts: NDArray[np.bool_], after_ms: Times) -> Positions:
    """Return the beginnings of sessions for a quiet period of 0 ms, of which those for longer quiet periods are a part."""
    found = np.empty(len(after_ms), np.int32)
    used = min(1, len(after_ms))
    found[:used] = 0
    for begin in range(1, len(after_ms), _BLOCK):
        end = min(begin + _BLOCK, len(after_ms))
        is_new = firsts[begin:end] | (after_ms[begin:end] != after_ms[begin - 1 : end - 1])
        at = np.flatnonzero(is_new) + begin
        found[used : used + len(at)] = at
        used += len(at)
    return found[:used]


def _room(length: int, max_ms: int) -> Times:
    return np.empty(length, np.uint32) if max_ms <= _MAX_SHORT else np.empty(length, np.int64)
