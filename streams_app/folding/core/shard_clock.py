"""The clock of a shard (pure): gives events their scores, also late ones, and decides from when a quiet period counts.

If groups were closed by the wall clock, a consumer that lags by the quiet period would find every event already "quiet" when it is
folded, and folding would fail exactly when it is needed. Therefore a shard that is behind the end of its partition lives by the
newest record time it has folded, and a shard that has caught up by the wall clock of its last fetch. Its clock never goes back, and
the next owner continues it.
"""

from __future__ import annotations

from typing import NamedTuple

from streams_app.delivery.clocks import SKEW_MS, ReaderView, advanced, is_caught_up, is_close


class RangeTime(NamedTuple):
    """The inputs from which the scores of a range are computed, besides the clocks of the shard.

    They are stored while the range is in progress, so that every owner gives an event the same score.

    Attributes:
        cap_ms: Wall clock when the range was begun; no record timestamp counts as later.
        arrived_ms: When the range was fetched, if the reader had been at the end of its partition just before; None: the range had
            been waiting in the log, as part of a backlog.
    """

    cap_ms: int
    arrived_ms: int | None


class Clocks(NamedTuple):
    """The clocks that are stored with a shard.

    Attributes:
        clock_ms: Partition clock, which determines what is due.
        record_clock_ms: Newest record timestamp so far, limited by the wall clock of its time.
        late_ms: With ``sessions``: how far record time was behind the wall clock when the last live event arrived.
    """

    clock_ms: int = 0
    record_clock_ms: int = 0
    late_ms: int = 0


class ShardClock:
    """The clocks of a shard as its owner knows them, and the rules by which they move.

    Attributes:
        stored: The clocks as they are in Redis.
        caught_up_at_ms: When the reader was last at the end of the partition, by a fetch reply or by the end of the log at the
            claim.
        folded_until_ms: Time until which everything that had arrived is folded, according to a fetch reply; None: no fetch reply
            since the claim has said so.
    """

    def __init__(self, *, backlog: str, quiet_ms: int) -> None:
        """Initialize a clock for a shard that is not claimed yet.

        Args:
            backlog: ``merge`` or ``sessions``.
            quiet_ms: Quiet period.
        """
        self.stored = Clocks()
        self.caught_up_at_ms: int | None = None
        self.folded_until_ms: int | None = None
        self._sessions = backlog == "sessions"
        self._quiet_ms = quiet_ms

    def take_over(self, stored: Clocks) -> None:
        """Take over the clocks of a shard that has just been claimed."""
        self.stored = stored
        self.caught_up_at_ms = self.folded_until_ms = None

    # ---- folding

    def range_time(self, view: ReaderView, now_ms: int) -> RangeTime:
        """Return the time of a range that begins now.

        Args:
            view: State of the reader after the fetch that returned the range.
            now_ms: Wall clock, or the time of Redis if the wall clock is not trusted.
        """
        return RangeTime(now_ms, _arrival_ms(view, self.caught_up_at_ms, now_ms))

    def start_ms(self, time: RangeTime) -> int:
        """Return the score before the first event of a range; scores are its running maximum.

        With ``sessions`` it is record time. With ``merge``, live events are scored by their arrival.
        """
        return self.stored.record_clock_ms if self._sessions else max(self.stored.clock_ms, time.arrived_ms or 0)

    def is_backlog(self, time: RangeTime) -> bool:
        """Return whether groups close by record time, as fast as the range is read."""
        return self._sessions and time.arrived_ms is None

    def after(self, time: RangeTime, last_score_ms: int, *, has_events: bool) -> Clocks:
        """Return the clocks after a range is folded.

        Args:
            time: Time of the range.
            last_score_ms: Score of its last event; without events, the result of :meth:`start_ms`.
            has_events: Whether the range has any event of the fold.
        """
        clock_ms, record_clock_ms, late_ms = self.stored
        record_clock_ms = max(record_clock_ms, last_score_ms)
        if self._sessions and has_events:
            late_ms = _late_after(late_ms, time, record_clock_ms)
        if self.is_backlog(time):
            last_score_ms = max(last_score_ms, _waiting_since(time, record_clock_ms, late_ms))
        return Clocks(max(clock_ms, last_score_ms), record_clock_ms, late_ms)

    def silent_from_ms(self, time: RangeTime, after: Clocks) -> int:
        """Return the earliest time from which silence after the events of a range counts; 0: from the score of each event.

        The scores of sessions are record time. If silence counted from there, every group of a producer with a slow clock would
        close at once. So silence counts from the arrival of the event, as far as it is known.
        """
        if not self._sessions:
            return 0
        arrived_ms = _waiting_since(time, after.record_clock_ms, after.late_ms) if time.arrived_ms is None else time.arrived_ms
        return max(arrived_ms, self.stored.clock_ms)

    # ---- emission

    def is_caught_up_now(self, fence: int, view: ReaderView, now_ms: int) -> bool:
        """Return whether the shard has caught up, and if so, store the time."""
        if not is_caught_up(fence, view, now_ms):
            return False
        self.caught_up_at_ms = self.folded_until_ms = min(view.fetched_at_ms or 0, now_ms)
        return True

    def forget_folded_until(self) -> None:
        """Forget until when everything that had arrived is folded, because the clock that said so is not trusted."""
        self.folded_until_ms = None

    def due_ms(self, folded_until_ms: int | None) -> int:
        """Return the partition clock as of now.

        Args:
            folded_until_ms: Time until which everything that had arrived is folded; None: unknown.
        """
        return advanced(self.stored.clock_ms, folded_until_ms or 0, caught_up=folded_until_ms is not None)

    def quiet_groups_close(self, clock_ms: int, now_ms: int) -> bool:
        """Return whether silence closes groups: always with ``sessions``; with ``merge`` unless the clock is X or more behind."""
        return self._sessions or now_ms - clock_ms < self._quiet_ms


def _arrival_ms(view: ReaderView, caught_up_at_ms: int | None, now_ms: int) -> int | None:
    """Return when a fetched range arrived, if the reader had been at the end of its partition just before; otherwise None.

    A process that was suspended since the fetch does not know what has arrived in the meantime.
    """
    fetched_ms = view.fetched_at_ms
    if fetched_ms is None or caught_up_at_ms is None:
        return None
    return min(fetched_ms, now_ms) if is_close(fetched_ms, caught_up_at_ms) and is_close(fetched_ms, now_ms) else None


def _late_after(late_ms: int, time: RangeTime, record_clock_ms: int) -> int:
    """Return how far record time is behind the time of arrival, after a range of sessions has been read.

    Everything that was read has arrived, so the lateness of a backlog is at most the distance of its record time from the wall
    clock. Otherwise the silence after its events would depend on who reads them when, and two successive owners would disagree.
    """
    if time.arrived_ms is None:
        return min(late_ms, max(0, time.cap_ms - record_clock_ms))
    return max(0, time.arrived_ms - record_clock_ms)


def _waiting_since(time: RangeTime, record_clock_ms: int, late_ms: int) -> int:
    """Return when the newest event of a backlog of sessions arrived, as far as live events have shown; 0: at its record timestamp.

    After the backlog is read, silence closes groups by the wall clock, and the backlog's own time is behind it by ``late_ms``. The
    result is never in the future.
    """
    return min(record_clock_ms + late_ms, time.cap_ms) if late_ms > SKEW_MS else 0
