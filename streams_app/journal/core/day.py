"""Advances the partition clock of a journal, and decides when a segment ends: after its UTC day, or at its maximum size (pure).

The clock determines to which day an event is appended, and which segments are old. It follows the newest record time and never goes
back; the trusted wall clock limits it, so that an event dated 2099 does no harm. Once a shard has caught up, its clock follows the
wall clock.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def day_of(time_ms: int) -> str:
    """Return the UTC day of a time in ms, as in ``2026-08-20``."""
    return (_EPOCH + timedelta(milliseconds=time_ms)).date().isoformat()


def begin_of(day: str) -> int:
    """Return the time at which a UTC day begins, in ms; ValueError if the text is not a day."""
    return (datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


def clock_after(clock_ms: int, record_ms: int | None, trusted_ms: int) -> int:
    """Return the partition clock of a journal after an event with the time ``record_ms``, which is None or negative if it has none.

    The clock advances to the record time, or to the trusted wall clock if that is earlier. It never goes back, and a record without
    a time does not change it.
    """
    return max(clock_ms, min(-1 if record_ms is None else record_ms, trusted_ms))


def ends(day: str, received_bytes: int, clock_ms: int, limit_bytes: int) -> bool:
    """Return whether a segment ends before the next event, after which the clock of the shard is ``clock_ms``."""
    return received_bytes >= limit_bytes or day_of(clock_ms) > day
