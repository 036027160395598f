"""The time one shard lives by (pure): how its events get their scores, and what silence means.

If the wall clock were asked, a consumer that lags by the quiet period would see every event already "quiet" when it is folded, and
folding would collapse exactly when it is needed. So a shard lives by the newest record time it has folded while it is behind the
end of its partition, and by the wall clock of its last fetch once it has caught up. Its clock never goes back, and the next owner
takes it over.
"""

from __future__ import annotations

from typing import NamedTuple

from streams_app.delivery.clocks import SKEW_MS, ReaderView, advanced, is_caught_up, is_close


class RangeTime(NamedTuple):
    """What the scores of a range are made with, beside the clocks of the shard.

    It is stored while the range is under way, so that every owner gives an event the same score.

    Attributes:
        cap_ms: Wall clock when the range was begun: no record timestamp counts as later.
        arrived_ms: When the range was fetched, if the reader had been at the end of its partition just before; None: the range had
            been waiting in the log, as part of a backlog.
    """

    cap_ms: int
    arrived_ms: int | None


class Clocks(NamedTuple):
    """The clocks that are stored with a shard.

    Attributes:
        clock_ms: Partition clock, by which it is judged what is due.
        record_clock_ms: Newest record timestamp so far, never beyond the wall clock of its time.
        late_ms: With ``sessions``: by how much record time was behind the wall clock when the last live event arrived.
    """

    clock_ms: int = 0
    record_clock_ms: int = 0
    late_ms: int = 0


class ShardClock:
    """The clocks of a shard as its owner knows them, and the rules by which they move.

    Attributes:
        stored: The clocks as they are in Redis.
        caught_up_at_ms: When the reader last was at the end of the partition, by a fetch reply or by the log's end at the claim.
        folded_until_ms: Time until which everything that had arrived is folded, according to a fetch reply; None: no fetch reply
            since the claim has said so.
    """

    def __init__(self, *, backlog: str, quiet_ms: int) -> None:
        """Has no clocks before the claim.

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
        """Takes the clocks of a shard that has just been claimed."""
        self.stored = stored
        self.caught_up_at_ms = self.folded_until_ms = None

    # ---- folding

    def range_time(self, view: ReaderView, now_ms: int) -> RangeTime:
        """The time of a range that is begun now.

        Args:
            view: What the fetch that brought the range said.
            now_ms: Wall clock, or the time of Redis where that is not trusted.
        """
        return RangeTime(now_ms, _arrival_ms(view, self.caught_up_at_ms, now_ms))

    def start_ms(self, time: RangeTime) -> int:
        """The score before the first event of a range: scores are its running maximum.

        With ``sessions`` that is record time. With ``merge`` events that come live are scored by their arrival.
        """
        return self.stored.record_clock_ms if self._sessions else max(self.stored.clock_ms, time.arrived_ms or 0)

    def is_backlog(self, time: RangeTime) -> bool:
        """Whether groups close by record time, as fast as the range is read."""
        return self._sessions and time.arrived_ms is None

    def after(self, time: RangeTime, last_score_ms: int, *, has_events: bool) -> Clocks:
        """The clocks once a range is folded.

        Args:
            time: Time of the range.
            last_score_ms: Score of its last event; without events what :meth:`start_ms` said.
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
        """The earliest moment from which silence after the events of a range is counted; 0: from the score of each.

        The scores of sessions are record time: were silence counted from there, every group of a producer whose clock is behind
        would be closed at once. So it is counted from the arrival of the event, as far as that is known.
        """
        if not self._sessions:
            return 0
        arrived_ms = _waiting_since(time, after.record_clock_ms, after.late_ms) if time.arrived_ms is None else time.arrived_ms
        return max(arrived_ms, self.stored.clock_ms)

    # ---- emission

    def is_caught_up_now(self, fence: int, view: ReaderView, now_ms: int) -> bool:
        """Whether the shard has caught up; remembers when it last had."""
        if not is_caught_up(fence, view, now_ms):
            return False
        self.caught_up_at_ms = self.folded_until_ms = min(view.fetched_at_ms or 0, now_ms)
        return True

    def forget_folded_until(self) -> None:
        """Forgets until when everything that had arrived is folded: the clock that said so is not trusted."""
        self.folded_until_ms = None

    def due_ms(self, folded_until_ms: int | None) -> int:
        """The partition clock as of now.

        Args:
            folded_until_ms: Moment until which everything that had arrived is folded; None: not known.
        """
        return advanced(self.stored.clock_ms, folded_until_ms or 0, caught_up=folded_until_ms is not None)

    def quiet_groups_close(self, clock_ms: int, now_ms: int) -> bool:
        """Whether silence closes groups: always with ``sessions``; with ``merge`` not while the clock is X or more behind."""
        return self._sessions or now_ms - clock_ms < self._quiet_ms


def _arrival_ms(view: ReaderView, caught_up_at_ms: int | None, now_ms: int) -> int | None:
    """When a fetched range arrived, if the reader had been at the end of its partition just before; else None.

    A process that was suspended since the fetch does not know what has arrived meanwhile.
    """
    fetched_ms = view.fetched_at_ms
    if fetched_ms is None or caught_up_at_ms is None:
        return None
    return min(fetched_ms, now_ms) if is_close(fetched_ms, caught_up_at_ms) and is_close(fetched_ms, now_ms) else None


def _late_after(late_ms: int, time: RangeTime, record_clock_ms: int) -> int:
    """By how much record time is behind the time of arrival, once a range of sessions has been read.

    What has been read has arrived: the lateness of a backlog is at most the distance of its record time to the wall clock.
    Otherwise the silence after its events would depend on who reads them when, and two owners in turn would not agree.
    """
    if time.arrived_ms is None:
        return min(late_ms, max(0, time.cap_ms - record_clock_ms))
    return max(0, time.arrived_ms - record_clock_ms)


def _waiting_since(time: RangeTime, record_clock_ms: int, late_ms: int) -> int:
    """When the newest event of a backlog of sessions arrived, as far as live events have told; 0: at its record timestamp.

    Once the backlog is read, silence closes groups by the wall clock, and the backlog's own time is behind that by ``late_ms``. The
    result is never a time to come.
    """
    return min(record_clock_ms + late_ms, time.cap_ms) if late_ms > SKEW_MS else 0
