"""Text of ``streams-app events explain``: a verdict on one event of a subscriber, and five labelled lines of facts (pure)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client.parser import text_string_to_metric_families

from streams_app.delivery.batch import TP
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.formatting import counted, escaped, shown, span, time_text
from streams_app.operations.dead_letter import ListedDeadLetter
from streams_app.operations.sentences import lay_out
from streams_app.subscribers.declaration.subscription import Subscription
from streams_app.subscribers.execution.crash_isolation import WATCH_PASSED
from streams_app.subscribers.execution.in_flight_event import DUE_AT_ONCE
from streams_app.subscribers.execution.status import WAITS, waiting_text
from streams_app.subscribers.state.offset_metadata import OffsetMetadata

if TYPE_CHECKING:
    from streams_app.operations.worker_pages import Page
    from streams_app.subscribers.declaration.subscriber import Idempotent
    from streams_app.subscribers.state.store import AttemptEntry

_SUSPENDED: Final = (
    "and it is suspended: its last attempts have all failed. One event at a time is tried until one succeeds, all others wait for "
    "that; meanwhile, for as long as its patience, failed attempts do not count"
)
_NOT_BEGUN: Final = "has not begun: no worker has run this subscriber in this partition"
_NO_OFFSET: Final = (
    'cannot begin: the group has no commit for this partition, and with idempotent = "no" no worker chooses where to begin; '
    "`streams-app check` says what to do"
)
_GAUGES: Final = "streams_app_subscriber_"
_GONE: Final = "is finished, or was lost: retention has removed its record, and nothing says any more which of them came first"
_HIDDEN: Final = "is in the log, hidden by a transaction that is open since offset"
_UNCOUNTED: Final = "has failed while its subscriber was suspended, which does not count,"
_WAITING_FOR: Final = "streams_app_waiting_for"
_ASKED: Final = ("waiting_events", "running_events", "retrying_events", "suspended")


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


def describe(found: EventFacts, one: Subscription, page: Page | None, now_ms: int, width: int) -> str:
    """Return text about an event: the verdict, a sentence that says what has become of it, then one line for each fact."""
    lines = {
        "mark": _committed_text(found, one),
        "note": _metadata_text(found),
        "redis": _redis(found, now_ms),
        "letter": _dead_letters(found.dead_letters, one, found.replayed) + _last_attempt(found, one, now_ms),
        "lag": f"{_lag(found)}; {worker_text(page, one.subscriber.name, one.subscriber.idempotent)}",
    }
    return lay_out(f"{_name(found)} of subscriber {one.subscriber.name} {_verdict(found, one, now_ms)}.", lines, width)


def describe_none(event_id: str, one: Subscription, searched: Sequence[SearchedOffsets], page: Page | None, width: int) -> str:
    """Return the report on an event id that was found neither in the searched offsets nor in a dead letter."""
    name = one.subscriber.name
    lines = {
        "search": "; ".join(_search_text(each) for each in searched),
        "letter": _dead_letters((), one),
        "look": f"further back with --since 24h, or by its place: streams-app events explain {name} {one.topic}:PARTITION:OFFSET",
        "lag": worker_text(page, name, one.subscriber.idempotent),
    }
    verdict = f"No unfinished event of subscriber {name} has the id or key {shown(event_id)}: it is finished, or never came."
    if not all(each.is_complete for each in searched):
        verdict = (
            f"No event with the id or key {shown(event_id)} was found among the first that subscriber {name} has not finished."
        )
    return lay_out(verdict, lines, width)


def describe_key(
    key: str, one: Subscription, found: Sequence[EventFacts], searched: Sequence[SearchedOffsets], page: Page | None, now_ms: int,
    width: int,
) -> str:  # fmt: skip
    """Return text about a record key: the verdict on each of its newest events, which are given newest first."""
    name = one.subscriber.name
    newest = f"The newest {counted(len(found), 'event')} with it" if len(found) > 1 else "The newest event with it"
    verdict = f"No event of subscriber {name} has the id {shown(key)}, but it is a record key. {newest}:"
    events = [lay_out(f"{_name(each)} {_verdict(each, one, now_ms)}.", {}, width) for each in found]
    lines = {
        "search": "; ".join(_search_text(each) for each in searched),
        "look": f"at one of them: streams-app events explain {name} {_position(found[0])}",
        "lag": worker_text(page, name, one.subscriber.idempotent),
    }
    return "\n".join([lay_out(verdict, {}, width), *events, lay_out("", lines, width)])


def _search_text(searched: SearchedOffsets) -> str:
    text = f"{searched.topic} from the committed offsets on ({counted(searched.above, 'offset')})"
    if searched.since_ms is not None:
        text += f" and below them since {time_text(searched.since_ms)} ({counted(searched.below, 'offset')})"
    if searched.unseen:
        everything = searched.above + searched.below + searched.unseen
        text += f", but not {counted(searched.unseen, 'offset')} more: --limit {everything} looks at them, too"
    return text


def worker_text(page: Page | None, name: str, idempotent: Idempotent = "unknown") -> str:
    """Describe how many events of a subscriber wait, run or are retried in the worker on this machine, or why this is unknown."""
    if page is None:
        return "no worker was asked, as http.port is 0"
    if page.text is None:
        return f"the worker at {page.url} {page.fault}"
    samples = [
        sample
        for family in text_string_to_metric_families(page.text)
        for sample in family.samples
        if sample.labels.get("subscriber") == name
    ]
    values = {one.name.removeprefix(_GAUGES): one.value for one in samples if one.name.startswith(_GAUGES)}
    waits_for = {one.labels["what"] for one in samples if one.name == _WAITING_FOR and one.value}
    if not values.keys() >= set(_ASKED):
        return f"the worker at {page.url} does not run it"
    waiting, running, retrying, suspended = (int(values[asked]) for asked in _ASKED)
    text = f"in the worker at {page.url} {waiting:,} wait, {running:,} run, {retrying:,} wait for a retry"
    parts = [
        f"{text}, {_SUSPENDED}" if suspended else text,
        *(waiting_text(what, idempotent) for what in WAITS if what in waits_for),
    ]
    return "; ".join(parts)


def _position(found: EventFacts) -> str:
    return f"{found.tp.topic}:{found.tp.partition}:{found.offset}"


def _name(found: EventFacts) -> str:
    position = _position(found)
    return f"Event {position}" if found.event_id in ("", position) else f"Event {shown(found.event_id)} ({position})"


def _verdict(found: EventFacts, one: Subscription, now_ms: int) -> str:
    if (ended := _ended(found, one)) is not None:
        return ended
    kept = found.kept
    if kept is not None and kept.due_ms == DUE_AT_ONCE:
        return "was interrupted because its process died or released its partition; it is retried as soon as possible"
    if kept is not None and not _is_in_progress(kept):
        left_ms = kept.due_ms - now_ms
        when = f"due in {span(left_ms)}" if left_ms > 0 else "due now"
        failed = f"has failed {counted(kept.attempts, 'time')}" if kept.attempts else _UNCOUNTED
        return f"{failed} and waits for its next attempt, {when}"
    if kept is not None or found.is_begun_by_commit:
        return "runs now, or the process in which it ran has died and its partition is not claimed yet"
    assert found.committed is not None  # `_ended` has a text for an event without a commit
    ahead = found.offset - found.committed.offset
    if not ahead:
        return "is the next one"
    # Only the metadata tells which events above the committed offset are finished.
    unless = (
        ""
        if found.metadata is not None
        else ", unless it is finished: the commit does not record which events above its offset are"
    )
    return f"waits for its turn, behind {counted(ahead, 'offset')} at most{unless}"


def _is_in_progress(kept: AttemptEntry) -> bool:
    return kept.is_begun or kept.due_ms == WATCH_PASSED


def _ended(found: EventFacts, one: Subscription) -> str | None:
    """Return the verdict on an event that no worker will run now: finished, rejected, lost or not readable yet. Otherwise None."""
    rejected = [dead_letter for dead_letter in found.dead_letters if not dead_letter.is_late]
    late = ", and has ended well after all" if len(rejected) < len(found.dead_letters) else ""
    reason = escaped(rejected[-1].reason) if rejected else ""
    back = ""
    if rejected and rejected[-1].digest() in found.replayed:
        back = ", was replayed since, and is finished" if found.is_none_waiting else ", and was replayed since"
    # A replayed event still has its earlier dead letter, and may be unfinished nevertheless.
    is_dead_lettered = bool(rejected) and (found.is_finished or found.kept is None)
    whose = f"is of another type, {shown(found.type)}: not for this subscriber"
    if not found.type:
        whose = "was replayed for another subscriber: not for this one"
    cases = [
        (found.offset >= max(found.end, found.high), "is not in the log yet"),
        (found.offset >= found.end, f"{_HIDDEN} {found.end}: no consumer reads past it before that has ended"),
        (is_dead_lettered, f"is a dead letter: {reason}{late}{back}"),
        (not found.is_ours, whose),
        (found.is_finished and found.offset < found.begin, _GONE),
        (found.is_finished, "is finished"),
        (found.committed is None, _NO_OFFSET if one.subscriber.requires_commit else _NOT_BEGUN),
        (found.offset < found.begin, "is lost: retention has removed it before it was finished"),
        (not found.event_id, "is none: the log has no record at this offset, and passes over it"),
    ]
    return next((text for is_so, text in cases if is_so), None)


def _committed_text(found: EventFacts, one: Subscription) -> str:
    if found.committed is None:
        return f"group {one.group} has committed nothing for {found.tp}"
    side = "is" if found.offset < found.committed.offset else "is not"
    return f"group {one.group} has committed {found.committed.offset} for {found.tp}: events below it are finished, this {side}"


def _metadata_text(found: EventFacts) -> str:
    if found.committed is None:
        return "none"
    if found.metadata is None:
        return "none that can be read: it is unknown which events above the committed offset are finished"
    intervals, begun = found.metadata.above.finished, found.metadata.above.begun
    finished = sum(one.end - one.begin for one in intervals)
    text = f"{counted(finished, 'offset')} above the committed offset finished, {len(begun)} begun"
    if found.offset < found.committed.offset or found.offset >= found.end:
        return text
    is_what = "finished" if found.is_finished else "begun" if found.is_begun_by_commit else "neither"
    return f"{text}; this one is {is_what}. It is as old as the last commit"


def _redis(found: EventFacts, now_ms: int) -> str:
    kept = found.kept
    if found.redis_fault:
        return f"not known: {found.redis_fault}"
    if kept is None:
        return "nothing is kept of it: it does not wait for a retry, and was not seen running"
    crashes = f"; {counted(kept.crash_count, 'death')} of its process may be its doing" if kept.crash_count else ""
    if _is_in_progress(kept):
        watched = "" if kept.is_begun else ", begun with a few others at most, and watched for a while"
        return f"attempt {kept.attempts} is in progress{watched}{crashes}"
    left_ms = kept.due_ms - now_ms
    when = f"in {span(left_ms)} ({time_text(kept.due_ms)})" if left_ms > 0 else "now"
    return f"{counted(kept.attempts, 'attempt')} made; the next one is due {when}{crashes}"


def _last_attempt(found: EventFacts, one: Subscription, now_ms: int) -> str:
    """Describe when an event that keeps failing becomes a dead letter; "" if it does not wait, or this is not known."""
    kept, rule = found.kept, one.subscriber.retry
    if kept is None or found.dead_letters or rule.by or kept.due_ms == DUE_AT_ONCE or _is_in_progress(kept):
        return ""
    left_ms = max(1, kept.due_ms - now_ms) + round(sum(map(rule.max_ms, range(kept.attempts + 1, rule.attempts))))
    return f"; if it keeps failing, one is made after attempt {rule.attempts}, in {span(left_ms)} at most"


def _dead_letters(dead_letters: Sequence[ListedDeadLetter], one: Subscription, replayed: Collection[str] = ()) -> str:
    if not dead_letters:
        return f"none of it in {one.dead_letters}"
    parts = [
        f"{escaped(dead_letter.reason)} at {time_text(dead_letter.timestamp_ms)} after {_attempts(dead_letter)}: "
        f"{escaped(dead_letter.headers.get('detail', ''))}{', replayed since' if dead_letter.digest() in replayed else ''}"
        for dead_letter in dead_letters
    ]
    return f"in {one.dead_letters}: {'; '.join(parts)}"


def _attempts(dead_letter: ListedDeadLetter) -> str:
    attempts = dead_letter.headers.get("attempts", "")
    return counted(int(attempts), "attempt") if attempts.isdecimal() else "? attempts"


def _lag(found: EventFacts) -> str:
    end = max(found.end, found.high)
    hidden = f"; an open transaction hides {end - found.end:,} of them" if end > found.end else ""
    if found.committed is None:
        return f"the log ends at {end}{hidden.replace(' of them', ' offsets')}"
    return f"the log ends at {end}, {counted(max(0, end - found.committed.offset), 'offset')} above the committed offset{hidden}"
