"""Status of a subscriber in one process, for the metrics and ``/health/ready`` (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from streams_app.delivery.batch import TP
from streams_app.formatting import counted
from streams_app.subscribers.declaration.subscriber import Idempotent

WAITS: Final[Mapping[str, str]] = {
    "redis": "Redis does not answer, or rejects requests",
    "redis-memory": "Redis is full",
    "schema-registry": "the schema registry does not answer",
    "broker": "the broker does not answer",
    "dead-letters": "its dead-letter topic does not acknowledge dead letters, see /health/ready",
    "note": "the metadata of its commit has no room for further begins until some events have ended",
    "window": "its reader is paused until some events are finished",
    "operator": "it cannot continue until an operator has run the command that /health/ready names",
}
"""Description of each label of the metric ``streams_app_waiting_for``, for operators."""

_REPORTED_SEPARATELY: Final = ("window", "operator")
"""Labels that ``/health/ready`` reports in more detail than :data:`WAITS`."""

_WITHOUT_MEMORY: Final = "Redis is full: events continue, and attempts are counted in this worker only"
"""Description of ``redis-memory`` for a subscriber with ``idempotent = "yes"``, which does not wait for Redis."""


class PartitionStatus(NamedTuple):
    """Status of one claimed partition.

    Attributes:
        end: Position of the reader of the partition: the offset that it reads next.
        unfinished: Number of events that were read and are not finished.
        retrying: Number of unfinished events that wait for their next attempt.
        oldest_ms: Timestamp of the oldest event that waits to be started; None: no event waits.
        waits_for: What the partition waits for, as labels of the metric ``streams_app_waiting_for``.
    """

    tp: TP
    end: int
    unfinished: int = 0
    retrying: int = 0
    oldest_ms: int | None = None
    metadata_bytes: int = 0
    waits_for: frozenset[str] = frozenset()
    dead_letters_fault: str = ""


class SubscriberStatus(NamedTuple):
    """Status of a subscriber, combined from its partitions.

    Attributes:
        waiting: Number of events that wait to be started, including unread ones.
        running: Number of running attempts, plus the number of slots that overdue attempts still occupy.
        oldest_waiting_ms: Age in ms of the oldest event that waits to be started; 0: no event waits.
        metadata_bytes: Size of the largest commit metadata of a partition.
        full: Partitions whose reader is paused, each with its number of unfinished events.
    """

    waiting: int = 0
    running: int = 0
    retrying: int = 0
    oldest_waiting_ms: int = 0
    is_suspended: bool = False
    metadata_bytes: int = 0
    waits_for: frozenset[str] = frozenset()
    full: tuple[tuple[TP, int], ...] = ()
    dead_letters_fault: str = ""


def first_unread(statuses: Iterable[PartitionStatus], unread_ranges: Mapping[TP, tuple[int, int]]) -> dict[TP, int]:
    """Return the first unread offset of each partition: the position of the reader or, for an unclaimed one, of the group.

    Args:
        unread_ranges: For each assigned partition, the position of the consumer group and the end of the log.
    """
    return {tp: position for tp, (position, _) in unread_ranges.items()} | {status.tp: status.end for status in statuses}


def paused_text(subscriber: str, now: SubscriberStatus) -> str:
    """Return a sentence that names the paused readers of a subscriber."""
    readers = ", ".join(f"{tp} ({counted(unfinished, 'unfinished event')})" for tp, unfinished in now.full)
    return f"subscriber {subscriber} reads no more of {readers} until some are finished"


def waiting_text(what: str, idempotent: Idempotent) -> str:
    """Return a description, for operators, of a label of the metric ``streams_app_waiting_for``."""
    return _WITHOUT_MEMORY if what == "redis-memory" and idempotent == "yes" else WAITS[what]


def status_remark(subscriber: str, now: SubscriberStatus, idempotent: Idempotent) -> str | None:
    """Return a summary, for operators, of why a subscriber does not run normally; None if it runs normally."""
    remarks = [paused_text(subscriber, now)] if now.full else []
    if now.is_suspended:
        remarks.append(f"subscriber {subscriber} is suspended: its last attempts have all failed, and it makes one at a time")
    for what in sorted(now.waits_for.difference(_REPORTED_SEPARATELY)):
        words = now.dead_letters_fault if what == "dead-letters" and now.dead_letters_fault else waiting_text(what, idempotent)
        remarks.append(f"subscriber {subscriber}: {words}")
    return "; ".join(remarks) or None


def combined_status(
    statuses: Sequence[PartitionStatus],
    unread_ranges: Mapping[TP, tuple[int, int]],
    since_ms: Iterable[int | None],
    *,
    running: int,
    is_suspended: bool,
    now_ms: int,
    hanging: int = 0,
) -> SubscriberStatus:
    """Combine the statuses of the partitions of a subscriber into one.

    Args:
        since_ms: Timestamps of the oldest waiting events that ``statuses`` do not include: of those queued for a slot, and of the
            unread ones in the log. Items that are None are ignored.
        hanging: Number of slots that overdue attempts occupy, although those attempts no longer count as running.
    """
    begins = first_unread(statuses, unread_ranges)
    unread = sum(max(0, end - begins[tp]) for tp, (_, end) in unread_ranges.items())
    retrying = sum(status.retrying for status in statuses)
    oldest = [one for one in (*(status.oldest_ms for status in statuses), *since_ms) if one is not None]
    return SubscriberStatus(
        max(0, unread + sum(status.unfinished for status in statuses) - retrying - running),
        running + hanging,
        retrying,
        max(0, now_ms - min(oldest)) if oldest else 0,
        is_suspended,
        max((status.metadata_bytes for status in statuses), default=0),
        frozenset().union(*(status.waits_for for status in statuses)),
        tuple((status.tp, status.unfinished) for status in statuses if "window" in status.waits_for),
        next((status.dead_letters_fault for status in statuses if status.dead_letters_fault), ""),
    )
