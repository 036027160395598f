"""The clock of a shard, its UTC days, and where its segments end (pure).

The clock decides in which day an event is filed, and what is old. It follows the newest record time, capped by the trusted wall
clock so that one event dated 2099 changes nothing, and never goes back. A shard that has caught up follows the wall clock.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def day_of(time_ms: int) -> str:
    """The UTC day of a moment, as in ``2026-08-20``."""
    return (_EPOCH + timedelta(milliseconds=time_ms)).date().isoformat()


def begin_of(day: str) -> int:
    """The moment at which a UTC day begins, ms.

    Raises:
        ValueError: The text is not a day.
    """
    return (datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


def clock_after(clock_ms: int, record_ms: int | None, trusted_ms: int) -> int:
    """The clock after an event.

    Args:
        clock_ms: The clock before it.
        record_ms: Time of the record; None or negative if it has none.
        trusted_ms: The trusted wall clock, beyond which no record moves the clock.
    """
    return max(clock_ms, min(-1 if record_ms is None else record_ms, trusted_ms))


def ends(day: str, received_bytes: int, clock_ms: int, limit_bytes: int) -> bool:
    """Whether a segment is over, so that the next event begins another one.

    Args:
        day: Day of the segment.
        received_bytes: What the segment has received.
        clock_ms: The clock after the next event.
        limit_bytes: What a segment receives, at most.
    """
    return received_bytes >= limit_bytes or day_of(clock_ms) > day
