"""The quiet period of a shard that sets itself: one for each range, and what is learned from the folded ranges.

A range is here what is folded at once: at most a minute of the events.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final

from streams_app.delivery.batch import TP
from streams_app.fold import Fold
from streams_app.folding.core.auto_quiet import (
    STEP_MS,
    AutoQuiet,
    AutoQuietGoal,
    LearnedGaps,
    QuietChange,
    packed_gaps,
    unpacked_gaps,
)
from streams_app.folding.core.event import DetailedEvent, FoldInput
from streams_app.folding.core.shard_clock import RangeTime
from streams_app.formatting import duration_text

logger = logging.getLogger(__name__)

STORE_AFTER_MS: Final = 60_000
"""What was learned is stored with the first range that ends this long after it was stored, or after the quiet period changed."""


def minutes_of(events: Iterable[FoldInput], end: int, now_ms: int) -> Iterator[tuple[list[FoldInput], int]]:
    """Divide a range into the minutes of its events, after each of which the quiet period may change.

    A range of new events is hardly longer. While old events are read, it may be hours.

    Args:
        end: Last offset of the range.
        now_ms: Timestamps after it count as this one.

    Yields:
        The events of each part, and the last offset of the part.
    """
    part: list[FoldInput] = []
    minute = 0
    for event in events:
        at = min(event[1], now_ms) // STEP_MS
        if part and at > minute:
            yield part, part[-1][0]
            part = []
        minute = max(minute, at)
        part.append(event)
    yield part, end


class ShardQuietPeriod:
    """The quiet period of one shard that sets itself.

    All events of a range have the same quiet period: the one before its first event or, if a former owner has begun the range, the
    one that is stored with it. So every owner folds the range in the same way.

    Events are learned once their range is folded, which concerns only the ranges after it. If the worker ends before it stores what
    it has learned, these events are not learned. If the fence moves back because the broker has lost events, or Redis was restored,
    the events that are read again may be learned twice. Neither changes what is stored of an event. If the definition of the fold
    changes, and with it perhaps its groups, the gaps of the former groups fade.
    """

    def __init__(self, goal: AutoQuietGoal, fold: str, tp: TP) -> None:
        self._goal = goal
        self._fold, self._tp = fold, tp
        self.take_over(b"")

    @classmethod
    def of(cls, fold: Fold, tp: TP) -> ShardQuietPeriod | None:
        """Return the quiet period of a shard; None if the quiet period of the fold does not set itself."""
        goal = AutoQuietGoal.of(fold)
        return None if goal is None else cls(goal, fold.name, tp)

    @property
    def quiet_ms(self) -> int:
        """Return the quiet period of the next range."""
        return self._auto.quiet_ms

    def take_over(self, stored: bytes) -> None:
        """Continue with what the last owner has stored; begin with the default if that is nothing, or is not valid."""
        learned: LearnedGaps | None = None
        try:
            learned = unpacked_gaps(stored) if stored else None
        except ValueError as error:
            logger.warning(
                "quiet period begins with its default, what was learned of it is not valid fold=%s source=%s error=%s",
                self._fold, self._tp, error,
            )  # fmt: skip
        self._auto = AutoQuiet(self._goal, learned)
        self._events: list[tuple[bytes, int]] = []
        self._range = RangeTime(0, None)
        self._has_news = self._has_changed = False
        self._stored_at_ms: int | None = None

    # ---- reading a range

    def begin(self, time: RangeTime) -> RangeTime:
        """Return the times of the range that :meth:`read` reads next, with its quiet period."""
        self._events = []
        self._range = time if time.quiet_ms else time._replace(quiet_ms=self.quiet_ms)
        return self._range

    def read(self, events: Iterable[DetailedEvent]) -> Iterator[DetailedEvent]:
        """Yield events with the quiet period of the range that was begun last, and remember them until the range is folded."""
        for event in events:
            if event.timestamp_ms >= 0:
                # As with scores: a timestamp in the future must not stop the learning until then.
                self._events.append((event.group, min(event.timestamp_ms, self._range.cap_ms)))
            yield event._replace(shorter_ms=self._shorter_ms(self._range))

    def reread(self, events: Iterable[DetailedEvent], time: RangeTime) -> Iterator[DetailedEvent]:
        """Yield events with the quiet period of a range, as :meth:`read` has done."""
        shorter_ms = self._shorter_ms(time)
        return (event._replace(shorter_ms=shorter_ms) for event in events)

    def _shorter_ms(self, time: RangeTime) -> int:
        # The range may have been begun under other limits.
        return max(0, self._goal.at_most_ms - (time.quiet_ms or 0))

    # ---- a range is folded

    def to_store(self, now_ms: int) -> bytes:
        """Return what was learned before the present range if it is to be stored with its end, else nothing."""
        is_recent = self._stored_at_ms is not None and 0 <= now_ms - self._stored_at_ms < STORE_AFTER_MS
        is_due = self._has_news and (self._has_changed or not is_recent)
        return packed_gaps(self._auto.learned) if is_due else b""

    def folded(self, now_ms: int, *, has_stored: bool) -> None:
        """Learn from the events of the range that was read; it is folded.

        Args:
            now_ms: Wall clock when the range was begun.
            has_stored: Whether the result of :meth:`to_store` was stored with it.
        """
        if has_stored:
            self._stored_at_ms, self._has_news, self._has_changed = now_ms, False, False
        for group, timestamp_ms in self._events:
            change = self._auto.observe(group, timestamp_ms)
            if change is not None:
                self._has_changed = True
                self._report(change)
        self._has_news |= bool(self._events)
        self._events = []

    def _report(self, change: QuietChange) -> None:
        logger.info(
            "quiet period changed from %s to %s: recent events would have a folding ratio of %.4f, not %.4f fold=%s source=%s",
            duration_text(change.before_ms), duration_text(change.after_ms), change.ratio_after, change.ratio_before,
            self._fold, self._tp,
        )  # fmt: skip
