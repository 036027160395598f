"""The clocks of a shard of a fold (pure): they give each event its *score*, and determine when a quiet period begins.

If groups closed by the wall clock, a consumer that lags by more than the quiet period would close every group after one event, and
folding would fail exactly when it is needed. Therefore the partition clock follows the newest folded record time while the shard is
behind the end of its partition, and the wall clock of the last fetch once it has caught up. It never goes back: a late event gets
the score of the event before it, and the next owner continues the clock.
"""

from __future__ import annotations

from typing import NamedTuple

from streams_app.delivery.clocks import SKEW_MS, ReaderView, advanced, is_caught_up, is_close


class RangeTime(NamedTuple):
    """Times that determine, with the stored :class:`Clocks` of the shard, the scores of the events in a range.

    They are stored while the range is in progress, so that every owner gives an event the same score and quiet period.

    Attributes:
        cap_ms: Wall clock when the range was begun; later record timestamps are reduced to it.
        arrived_ms: When the range was fetched, if the reader had been at the end of its partition just before; None if the range
            is part of a backlog.
        quiet_ms: Quiet period after each event of the range, if the quiet period of the fold sets itself; otherwise None.
    """

    cap_ms: int
    arrived_ms: int | None
    quiet_ms: int | None = None


class Clocks(NamedTuple):
    """The clocks stored with a shard, in ms.

    Attributes:
        clock_ms: Partition clock, by which groups become due.
        record_clock_ms: Newest record timestamp of a folded event so far, at most the wall clock when it was read.
        late_ms: Lag of record time behind the wall clock when the last live event arrived; 0 unless the backlog policy is
            ``sessions``.
    """

    clock_ms: int = 0
    record_clock_ms: int = 0
    late_ms: int = 0


class ShardClock:
    """The owner's copy of the :class:`Clocks` of a shard, and the rules that advance them.

    Attributes:
        caught_up_at_ms: When the reader was last at the end of the partition, according to a fetch reply or to the end of the log
            at the claim; None if that was never so since the claim.
        folded_until_ms: Time of the last fetch whose reply showed that no record above the fence was left to fold, by the wall
            clock. All records that had arrived by then are folded. None if there was no such fetch since the claim, or the wall
            clock was not trusted.
    """

    def __init__(self, *, backlog: str, quiet_ms: int) -> None:
        self.stored = Clocks()
        self.caught_up_at_ms: int | None = None
        self.folded_until_ms: int | None = None
        self._sessions = backlog == "sessions"
        self._quiet_ms = quiet_ms

    def take_over(self, stored: Clocks) -> None:
        self.stored = stored
        self.caught_up_at_ms = self.folded_until_ms = None

    # ---- folding

    def range_time(self, view: ReaderView, now_ms: int) -> RangeTime:
        """Return the times of a range whose folding begins now; without a trusted wall clock, ``now_ms`` is the time of Redis."""
        return RangeTime(now_ms, _arrival_ms(view, self.caught_up_at_ms, now_ms))

    def start_ms(self, time: RangeTime) -> int:
        """Return the lowest score, in ms, that an event of a range may get.

        The score of an event is the newest record timestamp of an event so far, but not less than the lowest score. With
        ``sessions``, the lowest score is the newest record time of the events of the shard. With ``merge``, it is the partition
        clock. If the range is not part of a backlog and was fetched later than that, it is the time of the fetch.
        """
        return self.stored.record_clock_ms if self._sessions else max(self.stored.clock_ms, time.arrived_ms or 0)

    def is_backlog(self, time: RangeTime) -> bool:
        """Return whether a range is part of a backlog and the policy is ``sessions``, so that groups close by record time."""
        return self._sessions and time.arrived_ms is None

    def after(self, time: RangeTime, last_score_ms: int, *, has_events: bool) -> Clocks:
        """Return the clocks as they will be after a range is folded.

        Without events, ``last_score_ms`` is the result of :meth:`start_ms`.
        """
        clock_ms, record_clock_ms, late_ms = self.stored
        record_clock_ms = max(record_clock_ms, last_score_ms)
        if self._sessions and has_events:
            late_ms = _late_after(late_ms, time, record_clock_ms)
        if self.is_backlog(time):
            last_score_ms = max(last_score_ms, _waiting_since(time, record_clock_ms, late_ms))
        return Clocks(max(clock_ms, last_score_ms), record_clock_ms, late_ms)

    def silent_from_ms(self, time: RangeTime, after: Clocks) -> int:
        """Return the earliest time, in ms, from which silence after events of a range counts; 0 if it counts from their scores.

        With ``sessions``, scores are record time. If silence counted from there, every group of a producer whose clock is behind
        would close at once. So silence counts from the arrival of the event, as far as the arrival is known.
        """
        if not self._sessions:
            return 0
        arrived_ms = _waiting_since(time, after.record_clock_ms, after.late_ms) if time.arrived_ms is None else time.arrived_ms
        return max(arrived_ms, self.stored.clock_ms)

    # ---- emission

    def observe_fetch(self, fence: int, view: ReaderView, now_ms: int) -> bool:
        """Return whether the last fetch is recent and shows that all events up to the end of the log are folded.

        If so, the time of that fetch becomes :attr:`caught_up_at_ms` and :attr:`folded_until_ms`.
        """
        if not is_caught_up(fence, view, now_ms):
            return False
        self.caught_up_at_ms = self.folded_until_ms = min(view.fetched_at_ms or 0, now_ms)
        return True

    def forget_folded_until(self) -> None:
        self.folded_until_ms = None

    def due_ms(self, folded_until_ms: int | None) -> int:
        """Return the present partition clock, in ms: the stored one, or ``folded_until_ms`` if that is known and later."""
        return advanced(self.stored.clock_ms, folded_until_ms or 0, caught_up=folded_until_ms is not None)

    def quiet_groups_close(self, clock_ms: int, now_ms: int) -> bool:
        """Return whether silence closes groups.

        With ``sessions``, it always does. With ``merge``, it does only while the partition clock lags the wall clock by less than
        the quiet period.
        """
        return self._sessions or now_ms - clock_ms < self._quiet_ms


def _arrival_ms(view: ReaderView, caught_up_at_ms: int | None, now_ms: int) -> int | None:
    """Return when a range arrived; None for a backlog, and after a suspension, in which more records may have arrived."""
    fetched_ms = view.fetched_at_ms
    if fetched_ms is None or caught_up_at_ms is None:
        return None
    return min(fetched_ms, now_ms) if is_close(fetched_ms, caught_up_at_ms) and is_close(fetched_ms, now_ms) else None


def _late_after(late_ms: int, time: RangeTime, record_clock_ms: int) -> int:
    """Return the lag of record time behind the arrival after a range.

    A backlog keeps the former lag, but at most the wall clock minus the newest record time, since its events have arrived by now.
    Without this limit, two successive owners would disagree on the silence after them.
    """
    if time.arrived_ms is None:
        return min(late_ms, max(0, time.cap_ms - record_clock_ms))
    return max(0, time.arrived_ms - record_clock_ms)


def _waiting_since(time: RangeTime, record_clock_ms: int, late_ms: int) -> int:
    """Estimate when the newest event of a backlog arrived: its record time plus the lag of live events, at most now.

    Return 0 if the lag is small. Silence closes groups by the wall clock once the backlog is read, and the wall clock is ahead of
    record time by the lag.
    """
    return min(record_clock_ms + late_ms, time.cap_ms) if late_ms > SKEW_MS else 0
