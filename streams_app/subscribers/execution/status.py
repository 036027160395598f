"""How a subscriber stands in one process at one moment (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from streams_app.delivery.batch import TP
from streams_app.formatting import counted
from streams_app.subscribers.declaration.subscriber import Idempotent

WAITS: Final[Mapping[str, str]] = {
    "redis": "Redis does not answer, or refuses what it is asked",
    "redis-memory": "Redis is full",
    "broker": "the broker does not answer",
    "dead-letters": "its dead-letter topic does not acknowledge dead letters, see /health/ready",
    "note": "the note of its commit has no room for more that begin, until some have ended",
    "window": "its reader is paused until some events are finished",
    "operator": "it cannot go on before somebody has run a command, which /health/ready names",
}
"""What a subscriber waits for, see the metric ``streams_app_waiting_for``, in words."""

_TOLD_OTHERWISE: Final = ("window", "operator")
"""Of these ``/health/ready`` says more."""

_WITHOUT_MEMORY: Final = "Redis is full: it goes on, and its attempts are counted in this worker alone"
"""Of one with ``"yes"``, which does not wait for Redis."""


class PartitionStatus(NamedTuple):
    """What one claimed partition says of itself.

    Attributes:
        tp: The partition.
        end: Position of its reader.
        unfinished: Events that were read and are not finished.
        retrying: Those of them that wait for their next attempt.
        oldest_ms: Time of the record of the oldest event that waits for its turn; None: none does.
        note_bytes: Size of the note of its last mark.
        waits_for: What it waits for, see the metric ``streams_app_waiting_for``.
        letters_fault: Why its dead letters are not acknowledged, in words; "" where nobody has said so.
    """

    tp: TP
    end: int
    unfinished: int = 0
    retrying: int = 0
    oldest_ms: int | None = None
    note_bytes: int = 0
    waits_for: frozenset[str] = frozenset()
    letters_fault: str = ""


class SubscriberStatus(NamedTuple):
    """How the whole subscriber stands.

    Attributes:
        waiting: Events that wait for their turn, those that are not read yet with them.
        running: Attempts under way, and slots whose attempts are overdue.
        retrying: Events that wait for their next attempt.
        oldest_waiting_ms: Age of the oldest event that waits for its turn; 0: none does.
        is_suspended: Whether one attempt at a time is made.
        note_bytes: Size of the largest note.
        waits_for: What any of its partitions waits for.
        full: Partitions whose reader is paused, each with its unfinished events.
        letters_fault: Why dead letters are not acknowledged, in words; "" where nobody has said so.
    """

    waiting: int = 0
    running: int = 0
    retrying: int = 0
    oldest_waiting_ms: int = 0
    is_suspended: bool = False
    note_bytes: int = 0
    waits_for: frozenset[str] = frozenset()
    full: tuple[tuple[TP, int], ...] = ()
    letters_fault: str = ""


def unread_from(looks: Iterable[PartitionStatus], places: Mapping[TP, tuple[int, int]]) -> dict[TP, int]:
    """Partition → first offset that was not read.

    Args:
        looks: Of the partitions that are claimed.
        places: Partition that is assigned → where its group is, and the end of its log.
    """
    return {tp: position for tp, (position, _) in places.items()} | {look.tp: look.end for look in looks}


def paused(subscriber: str, now: SubscriberStatus) -> str:
    """Which readers of a subscriber are paused, in words."""
    readers = ", ".join(f"{tp} ({counted(unfinished, 'unfinished event')})" for tp, unfinished in now.full)
    return f"subscriber {subscriber} reads no more of {readers} until some are finished"


def words_of(what: str, idempotent: Idempotent) -> str:
    """What a subscriber waits for, or goes on without, in words."""
    return _WITHOUT_MEMORY if what == "redis-memory" and idempotent == "yes" else WAITS[what]


def remark_of(subscriber: str, now: SubscriberStatus, idempotent: Idempotent) -> str | None:
    """What people want to know of a subscriber that does not simply go on; None: it does."""
    told = [paused(subscriber, now)] if now.full else []
    if now.is_suspended:
        told.append(f"subscriber {subscriber} is suspended: its last attempts have all failed, one at a time is made")
    for what in sorted(now.waits_for.difference(_TOLD_OTHERWISE)):
        words = now.letters_fault if what == "dead-letters" and now.letters_fault else words_of(what, idempotent)
        told.append(f"subscriber {subscriber}: {words}")
    return "; ".join(told) or None


def present(
    looks: Sequence[PartitionStatus],
    places: Mapping[TP, tuple[int, int]],
    since_ms: Iterable[int | None],
    *,
    running: int,
    is_suspended: bool,
    now_ms: int,
    hanging: int = 0,
) -> SubscriberStatus:
    """How a subscriber stands by what its partitions say.

    Args:
        looks: Of the partitions that are claimed.
        places: As for :func:`unread_from`.
        since_ms: Times of events that wait for their turn elsewhere: in the queue of the slots, or unread in the log.
        running: Attempts under way.
        is_suspended: Whether one attempt at a time is made.
        now_ms: Wall clock.
        hanging: Slots whose attempts are overdue: their events are no longer running, the slots are taken all the same.
    """
    begins = unread_from(looks, places)
    unread = sum(max(0, end - begins[tp]) for tp, (_, end) in places.items())
    retrying = sum(look.retrying for look in looks)
    oldest = [one for one in (*(look.oldest_ms for look in looks), *since_ms) if one is not None]
    return SubscriberStatus(
        max(0, unread + sum(look.unfinished for look in looks) - retrying - running),
        running + hanging,
        retrying,
        max(0, now_ms - min(oldest)) if oldest else 0,
        is_suspended,
        max((look.note_bytes for look in looks), default=0),
        frozenset().union(*(look.waits_for for look in looks)),
        tuple((look.tp, look.unfinished) for look in looks if "window" in look.waits_for),
        next((look.letters_fault for look in looks if look.letters_fault), ""),
    )
