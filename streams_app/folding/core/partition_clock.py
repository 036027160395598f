"""The time a shard lives by, beside the clock of its partition (pure).

A consumer that lags by the quiet period sees every event already "quiet" when it is folded, if the wall clock is asked:
folding then collapses exactly when it is needed. So a shard lives by the newest record time it has folded while it is
behind the end of its partition, and by the wall clock of its last fetch once it has caught up. It never goes back.
"""

from __future__ import annotations

from streams_app.delivery.partition_clock import SKEW_MS, ReaderView, is_close


def arrival_ms(view: ReaderView, caught_up_at_ms: int | None, now_ms: int) -> int | None:
    """When a fetched range arrived, if the reader had been at the end of its partition just before; else None.

    Args:
        view: Of the fetch that brought it.
        caught_up_at_ms: When the reader last was at the end.
        now_ms: Wall clock, or the time of Redis where that is not trusted. A process that was suspended since the fetch does not
            know what has arrived meanwhile.
    """
    fetched_ms = view.fetched_at_ms
    if fetched_ms is None or caught_up_at_ms is None:
        return None
    return min(fetched_ms, now_ms) if is_close(fetched_ms, caught_up_at_ms) and is_close(fetched_ms, now_ms) else None


def silent_from_ms(arrived_ms: int | None, record_clock_ms: int, late_ms: int, now_ms: int) -> int | None:
    """From when the silence after a range of sessions is counted; None: from the record time of each event.

    What had been waiting arrived later than its records say, as far as is known from what came live: by so much its time is
    behind the wall clock, which silence ends by once the backlog is read. Nothing is counted from a time to come.

    Args:
        arrived_ms: When the range arrived; None: it had been waiting.
        record_clock_ms: Newest record timestamp so far.
        late_ms: By how much that was behind, when the last live event arrived.
        now_ms: Wall clock.
    """
    if arrived_ms is not None or late_ms <= SKEW_MS:
        return arrived_ms
    return min(record_clock_ms + late_ms, now_ms)


def late_after_ms(late_ms: int, arrived_ms: int | None, record_clock_ms: int, now_ms: int) -> int:
    """By how much record time is behind the time of arrival, once a range of sessions with events has been read.

    What has been read has arrived: of a backlog it is at most by how much its record time is behind the wall clock. Else the
    silence after its events would be counted by who reads them when, and two owners in turn would not agree.

    Args:
        late_ms: As it was known before.
        arrived_ms: When the range arrived; None: it had been waiting.
        record_clock_ms: Newest record timestamp so far.
        now_ms: Wall clock.
    """
    if arrived_ms is None:
        return min(late_ms, max(0, now_ms - record_clock_ms))
    return max(0, arrived_ms - record_clock_ms)


def quiet_groups_close(backlog: str, clock_ms: int, now_ms: int, quiet_ms: int) -> bool:
    """Whether silence closes groups: always with ``sessions``; with ``merge`` not while the clock is X or more behind."""
    return backlog == "sessions" or now_ms - clock_ms < quiet_ms
