"""An unfinished event, and the limits of unfinished events in a partition (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from streams_app.events.headers import header_bytes

DUE_AT_ONCE: Final = 1
"""Due time, in ms, of an event that does not run, and whose next attempt may start at once: its attempt was cancelled before it
started, or its process died or released the partition."""


class InFlightEvent(msgspec.Struct, eq=False, gc=False):
    """One unfinished event; a msgspec struct without garbage collection, because that is created faster than a dataclass.

    Attributes:
        size_bytes: Approximate size of the record's key, value and headers.
        attempts: Number of attempts that have begun, without those that do not count, such as failures during an outage.
        crash_count: Number of attempts during which the process crashed, as far as is known.
        first_failed_ms: When the first attempt under this claim failed, by the wall clock; 0: none has failed.
        due_ms: When the next attempt is due, by the wall clock, or :data:`DUE_AT_ONCE`; 0: the event does not wait for a retry.
        event_id: "" until the record is decoded.
        is_interrupted: Whether an earlier attempt was interrupted, by a crash for example, so that the event must not run again.
        waited_ms: Sum of the retry delays under this claim, without those after attempts that do not count.
    """

    record: Any
    size_bytes: int
    attempts: int = 0
    crash_count: int = 0
    first_failed_ms: int = 0
    due_ms: int = 0
    event_id: str = ""
    is_interrupted: bool = False
    waited_ms: int = 0

    @property
    def offset(self) -> int:
        return int(self.record.offset)


MAX_UNFINISHED: Final = 10_000
MAX_UNFINISHED_BYTES: Final = 64 * 1024 * 1024
"""The reader of a partition pauses when it has this many unfinished events, or this many bytes of them. Below these limits, an
event that is retried delays at most other events of its key."""

HEADER_BYTES: Final = 100
"""Approximate memory of a header in addition to its name and value, because thousands of empty headers also need memory."""


def sizes_of(records: Sequence[Any]) -> list[int]:
    """Return the approximate size of each record in bytes: key, value and headers."""
    sizes = [len(record.value or b"") + len(record.key or b"") for record in records]
    if any([record.headers for record in records]):
        headers = [record.headers for record in records]
        sizes = [size + header_bytes(some) + HEADER_BYTES * len(some) for size, some in zip(sizes, headers, strict=True)]
    return sizes
