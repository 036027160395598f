"""Facts about one event of a subscriber, as data (pure). :mod:`streams_app.operations.event_text` has the sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from streams_app.delivery.batch import TP
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.operations.dead_letter import ListedDeadLetter
from streams_app.operations.group_facts import GroupDrop
from streams_app.subscribers.declaration.subscriber import Idempotent
from streams_app.subscribers.declaration.subscription import Subscription
from streams_app.subscribers.execution.crash_isolation import WATCH_PASSED
from streams_app.subscribers.execution.in_flight_event import DUE_AT_ONCE
from streams_app.subscribers.execution.status import WAITS
from streams_app.subscribers.state.offset_metadata import OffsetMetadata

if TYPE_CHECKING:
    from streams_app.operations.worker_pages import Page
    from streams_app.subscribers.state.store import AttemptEntry

_GAUGES: Final = "streams_app_subscriber_"
_WAITING_FOR: Final = "streams_app_waiting_for"
_ASKED: Final = ("waiting_events", "running_events", "retrying_events", "suspended")

EventVerdict: TypeAlias = Literal[
    "not-in-log", "hidden", "dead-letter", "other-type", "other-subscriber", "finished-or-lost", "finished", "no-commit",
    "not-begun", "lost", "no-record", "interrupted", "retrying", "running", "next", "waiting",
]  # fmt: skip
"""What has become of an event: the first of these that is true.

``hidden``: by an open transaction; ``no-commit``: a subscriber with ``idempotent = "no"`` cannot begin in the partition;
``no-record``: the log has no record at the offset.
"""


@dataclass(frozen=True, slots=True)
class EventFacts:
    """Facts about one event of a subscriber.

    Attributes:
        begin: First offset of the log.
        end: Last stable offset of the log.
        high: High watermark of the log. If it is above ``end``, an open transaction hides the records between the two.
        committed: Committed offset of the group; None: the group has no commit.
        metadata: Decoded metadata of that commit; None: it cannot be decoded, or there is no commit.
        event_id: Id of the event; "": the log has no record at this offset.
        type: Event type that the producer set; "": the producer set none, or the event was replayed.
        timestamp_ms: Timestamp of the record; 0: the log has no record at this offset.
        is_ours: Whether the event is for this subscriber: it has the type that the subscriber handles, or no type, or was
            replayed for it.
        kept: Attempts of the event as stored in Redis; None: Redis has none.
        redis_fault: Why the state in Redis is unknown; "": Redis answered.
        dead_letters: Dead letters of the event, oldest first.
        replayed: Digests of events that were replayed.
        is_none_waiting: Whether a complete search of the replay topic found no unfinished copy of the event. False if there was no
            such search.
    """

    tp: TP
    offset: int
    begin: int
    end: int
    high: int = 0
    committed: OffsetAndMetadata | None = None
    metadata: OffsetMetadata | None = None
    event_id: str = ""
    type: str = ""
    timestamp_ms: int = 0
    is_ours: bool = True
    kept: AttemptEntry | None = None
    redis_fault: str = ""
    dead_letters: tuple[ListedDeadLetter, ...] = ()
    replayed: frozenset[str] = frozenset()
    is_none_waiting: bool = False

    @property
    def is_finished(self) -> bool:
        """Whether the event is finished according to the commit or its metadata."""
        if self.committed is None:
            return False
        intervals = () if self.metadata is None else self.metadata.above.finished
        return self.offset < self.committed.offset or any(one.begin <= self.offset < one.end for one in intervals)

    @property
    def is_begun_by_commit(self) -> bool:
        """Whether an attempt of the event had begun according to the commit metadata."""
        return self.metadata is not None and self.offset in self.metadata.above.begun


@dataclass(frozen=True, slots=True)
class SearchedOffsets:
    """Offsets of a topic that were searched for an event id.

    Attributes:
        above: Number of searched offsets from the committed offsets on.
        below: Number of searched offsets below the committed offsets.
        since_ms: Time at which the search below the committed offsets began; None: only offsets above were searched.
        unseen: Number of offsets that were not searched because of the limit.
        is_complete: Whether the search included all offsets whose events may be unfinished.
    """

    topic: str
    above: int
    below: int
    since_ms: int | None
    unseen: int = 0
    is_complete: bool = True


class EventDeadLetter(msgspec.Struct, frozen=True):
    """A dead letter of an event.

    Attributes:
        at_ms: Time at which it was written.
        attempts: None: unknown.
        is_late: Whether it only reports that an interrupted event finished after all.
        is_replayed: Whether the event was replayed since.
    """

    reason: str
    at_ms: int
    attempts: int | None
    detail: str
    is_late: bool
    is_replayed: bool


class EventAttempts(msgspec.Struct, frozen=True):
    """The attempts of an event, as stored in Redis.

    Attributes:
        crashes: Crashes of a worker that the event may have caused.
        was_watched: Whether the running attempt was watched for a while, so that a crash is no longer attributed to the event.
        due_ms: Time of the next attempt; None: an attempt is running, or the next one is due at once.
        rejected_in_ms: Maximum time until the event becomes a dead letter if it keeps failing; None: not known.
        max_attempts: Attempts after which it becomes one; 0: not known.
    """

    attempts: int
    crashes: int
    is_running: bool
    was_watched: bool
    due_ms: int | None
    rejected_in_ms: int | None = None
    max_attempts: int = 0


class EventCommit(msgspec.Struct, frozen=True):
    """The commit of the consumer group for the partition of an event.

    Attributes:
        finished_above: Number of finished events above the committed offset; None: the metadata of the commit cannot be read.
        begun_above: Likewise the number of events that have begun.
    """

    offset: int
    finished_above: int | None
    begun_above: int | None


class EventState(msgspec.Struct, frozen=True):
    """State of one event of a subscriber.

    Attributes:
        id: "": the log has no record at the offset.
        type: Event type that the producer set; "": none.
        timestamp_ms: 0: the log has no record at the offset.
        log_begin: First offset of the log.
        log_end: Last stable offset of the log. Records from it up to ``high_watermark`` are hidden by an open transaction.
        commit: None: the group has committed nothing for the partition.
        by_commit: What the commit says about the event.
        attempts: None: Redis has none, or has not answered.
        redis_fault: Why the state in Redis is unknown; "": Redis has answered.
        is_copy_finished: Whether the event was replayed, and no copy of it waits any longer.
    """

    verdict: EventVerdict
    topic: str
    partition: int
    offset: int
    id: str
    type: str
    timestamp_ms: int
    log_begin: int
    log_end: int
    high_watermark: int
    commit: EventCommit | None
    by_commit: Literal["finished", "begun", "neither"]
    attempts: EventAttempts | None
    redis_fault: str
    dead_letters: tuple[EventDeadLetter, ...]
    is_copy_finished: bool


class SubscriberInWorker(msgspec.Struct, frozen=True):
    """State of a subscriber in the worker on this machine.

    Attributes:
        worker: Address of the worker; None: ``http.port`` is 0, so no worker was asked.
        fault: Why the numbers are unknown, as the end of a sentence that begins with the address; "": they are known.
        waits_for: What the subscriber waits for, as labels of the metric ``streams_app_waiting_for``.
    """

    worker: str | None
    fault: str = ""
    waiting: int = 0
    running: int = 0
    retrying: int = 0
    is_suspended: bool = False
    waits_for: tuple[str, ...] = ()


class EventExplanation(msgspec.Struct, frozen=True):
    """Everything that is known of an event that was asked for.

    Attributes:
        asked: Position, id or record key, as typed.
        at_ms: Time of the explanation.
        by: What ``events`` has: the event of a position or id, the newest events of a record key, newest first, or nothing.
        searched: The offsets that were searched for an id or key.
    """

    asked: str
    at_ms: int
    subscriber: str
    idempotent: Idempotent
    group: str
    topic: str
    dead_letter_topic: str
    by: Literal["event", "key", "nothing"]
    events: tuple[EventState, ...]
    searched: tuple[SearchedOffsets, ...]
    worker: SubscriberInWorker


class FoldedEventState(msgspec.Struct, frozen=True):
    """What a fold did with an event of its source.

    Attributes:
        verdict: Whether the event is not folded yet, in no group, or in a group that was dropped, is open or closed.
        log_end: Last stable offset of the partition.
        read_to: Highest folded offset of the partition; None: no worker has ever claimed the partition.
        why: Why the event is in no group, as the end of a sentence.
        group: Record key of the group, as text; "": the group is unknown.
        key: The same with its JSON type.
        drops: The drop of the group, or the drops that may have contained an event whose group is unknown.
    """

    verdict: Literal["not-folded", "no-group", "dropped", "open", "closed"]
    fold: str
    source: str
    partition: int
    offset: int
    output: str
    log_end: int
    read_to: int | None
    why: str = ""
    group: str = ""
    key: Any = None
    drops: tuple[GroupDrop, ...] = ()


def explanation_of(
    asked: str, one: Subscription, found: Sequence[EventFacts], searched: Sequence[SearchedOffsets], page: Page | None, now_ms: int,
    *, is_key: bool = False,
) -> EventExplanation:  # fmt: skip
    """Return everything that is known of an event.

    Args:
        found: The event, or with ``is_key`` the newest events of a record key; empty: nothing was found.
        page: Metrics of the worker on this machine.
    """
    return EventExplanation(
        asked,
        now_ms,
        one.subscriber.name,
        one.subscriber.idempotent,
        one.group,
        one.topic,
        one.dead_letters,
        "nothing" if not found else "key" if is_key else "event",
        tuple(state_of_event(each, one, now_ms) for each in found),
        tuple(searched),
        subscriber_in(page, one.subscriber.name),
    )


def state_of_event(found: EventFacts, one: Subscription, now_ms: int) -> EventState:
    """Return the state of an event of a subscriber."""
    dead_letters = tuple(
        EventDeadLetter(
            each.reason, each.timestamp_ms, _attempts_of(each), each.headers.get("detail", ""), each.is_late,
            each.digest() in found.replayed,
        )
        for each in found.dead_letters
    )  # fmt: skip
    return EventState(
        _verdict(found, one, dead_letters),
        *found.tp,
        found.offset,
        found.event_id,
        found.type,
        found.timestamp_ms,
        found.begin,
        found.end,
        max(found.end, found.high),
        None if found.committed is None else _commit(found.committed.offset, found.metadata),
        "finished" if found.is_finished else "begun" if found.is_begun_by_commit else "neither",
        None if found.kept is None else _attempts(found.kept, found, one, now_ms),
        found.redis_fault,
        dead_letters,
        found.is_none_waiting,
    )


def _attempts_of(dead_letter: ListedDeadLetter) -> int | None:
    attempts = dead_letter.headers.get("attempts", "")
    return int(attempts) if attempts.isdecimal() else None


def _commit(offset: int, metadata: OffsetMetadata | None) -> EventCommit:
    if metadata is None:
        return EventCommit(offset, None, None)
    return EventCommit(offset, sum(one.end - one.begin for one in metadata.above.finished), len(metadata.above.begun))


def _is_in_progress(kept: AttemptEntry) -> bool:
    return kept.is_begun or kept.due_ms == WATCH_PASSED


def _attempts(kept: AttemptEntry, found: EventFacts, one: Subscription, now_ms: int) -> EventAttempts:
    is_running, rule = _is_in_progress(kept), one.subscriber.retry
    has_no_time = is_running or kept.due_ms == DUE_AT_ONCE
    due_ms = None if has_no_time else kept.due_ms
    if has_no_time or found.dead_letters or rule.by:
        return EventAttempts(kept.attempts, kept.crash_count, is_running, kept.due_ms == WATCH_PASSED, due_ms)
    left_ms = max(1, kept.due_ms - now_ms) + round(sum(map(rule.max_ms, range(kept.attempts + 1, rule.attempts))))
    return EventAttempts(kept.attempts, kept.crash_count, is_running, kept.due_ms == WATCH_PASSED, due_ms, left_ms, rule.attempts)


def _verdict(found: EventFacts, one: Subscription, dead_letters: Sequence[EventDeadLetter]) -> EventVerdict:
    if (ended := _ended(found, one, dead_letters)) is not None:
        return ended
    kept = found.kept
    if kept is not None and kept.due_ms == DUE_AT_ONCE:
        return "interrupted"
    if kept is not None and not _is_in_progress(kept):
        return "retrying"
    if kept is not None or found.is_begun_by_commit:
        return "running"
    return "next" if found.committed is not None and found.offset == found.committed.offset else "waiting"


def _ended(found: EventFacts, one: Subscription, dead_letters: Sequence[EventDeadLetter]) -> EventVerdict | None:
    """Return the verdict on an event that no worker will run now: finished, rejected, lost or not readable yet. Otherwise None."""
    # A replayed event still has its earlier dead letter, and may be unfinished nevertheless.
    is_rejected = not all(each.is_late for each in dead_letters) and (found.is_finished or found.kept is None)
    cases: list[tuple[bool, EventVerdict]] = [
        (found.offset >= max(found.end, found.high), "not-in-log"),
        (found.offset >= found.end, "hidden"),
        (is_rejected, "dead-letter"),
        (not found.is_ours, "other-type" if found.type else "other-subscriber"),
        (found.is_finished and found.offset < found.begin, "finished-or-lost"),
        (found.is_finished, "finished"),
        (found.committed is None, "no-commit" if one.subscriber.requires_commit else "not-begun"),
        (found.offset < found.begin, "lost"),
        (not found.event_id, "no-record"),
    ]
    return next((verdict for is_so, verdict in cases if is_so), None)


def subscriber_in(page: Page | None, name: str) -> SubscriberInWorker:
    """Return how many events of a subscriber wait, run or are retried in a worker, by its metrics, or why this is unknown."""
    if page is None:
        return SubscriberInWorker(None)
    if page.text is None:
        return SubscriberInWorker(page.url, page.fault)
    samples = [
        sample
        for family in text_string_to_metric_families(page.text)
        for sample in family.samples
        if sample.labels.get("subscriber") == name
    ]
    values = {one.name.removeprefix(_GAUGES): one.value for one in samples if one.name.startswith(_GAUGES)}
    waits_for = {one.labels["what"] for one in samples if one.name == _WAITING_FOR and one.value}
    if not values.keys() >= set(_ASKED):
        return SubscriberInWorker(page.url, "does not run it")
    waiting, running, retrying, suspended = (int(values[asked]) for asked in _ASKED)
    labels = tuple(what for what in WAITS if what in waits_for)
    return SubscriberInWorker(page.url, "", waiting, running, retrying, bool(suspended), labels)
