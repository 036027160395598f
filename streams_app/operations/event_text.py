"""Sentences about the facts of an event (pure): a verdict, and facts by their labels, in the order in which they are shown."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from streams_app.formatting import counted, escaped, shown, shown_key, span, time_text
from streams_app.operations.event_facts import (
    EventAttempts,
    EventCommit,
    EventDeadLetter,
    EventExplanation,
    EventState,
    FoldedEventState,
    SearchedOffsets,
    SubscriberInWorker,
)
from streams_app.operations.group_text import dropped_text
from streams_app.subscribers.declaration.subscriber import Idempotent
from streams_app.subscribers.execution.status import waiting_text

_SUSPENDED: Final = (
    "and it is suspended: its last attempts have all failed. One event at a time is tried until one succeeds, all others wait for "
    "that; meanwhile, for as long as its patience, failed attempts do not count"
)
_VERDICTS: Final = {
    "not-in-log": "is not in the log yet",
    "other-subscriber": "was replayed for another subscriber: not for this one",
    "finished-or-lost": "is finished, or was lost: retention has removed its record, and nothing says any more which of them came "
    "first",
    "finished": "is finished",
    "no-commit": 'cannot begin: the group has no commit for this partition, and with idempotent = "no" no worker chooses where to '
    "begin; `streams-app check` says what to do",
    "not-begun": "has not begun: no worker has run this subscriber in this partition",
    "lost": "is lost: retention has removed it before it was finished",
    "no-record": "is none: the log has no record at this offset, and passes over it",
    "interrupted": "was interrupted because its process died or released its partition; it is retried as soon as possible",
    "running": "runs now, or the process in which it ran has died and its partition is not claimed yet",
    "next": "is the next one",
}
"""The sentences of those verdicts that need no facts."""

_UNCOUNTED: Final = "has failed while its subscriber was suspended, which does not count,"


def event_sentences(found: EventExplanation | FoldedEventState) -> list[tuple[str, dict[str, str]]]:
    """Return paragraphs about an event, each of a verdict, which may be empty, and facts."""
    if isinstance(found, FoldedEventState):
        return [_folded(found)]
    by = {"event": _of_event, "key": _of_key, "nothing": _of_nothing}
    return by[found.by](found)


def _of_event(found: EventExplanation) -> list[tuple[str, dict[str, str]]]:
    (event,) = found.events
    lines = {
        "commit": _committed_text(event, found.group),
        "offsets": _metadata_text(event),
        "redis": _redis(event, found.at_ms),
        "dead": _dead_letters(event.dead_letters, found.dead_letter_topic) + _last_attempt(event),
        "lag": f"{_lag(event)}; {worker_text(found.worker, found.idempotent)}",
    }
    return [(f"{_name(event)} of subscriber {found.subscriber} {event_verdict_text(event, found.at_ms)}.", lines)]


def _of_nothing(found: EventExplanation) -> list[tuple[str, dict[str, str]]]:
    name = found.subscriber
    lines = {
        "search": "; ".join(map(_search_text, found.searched)),
        "dead": _dead_letters((), found.dead_letter_topic),
        "try": f"further back with --since 24h, or by its place: streams-app events explain {name} {found.topic}:PARTITION:OFFSET",
        "lag": worker_text(found.worker, found.idempotent),
    }
    verdict = f"No unfinished event of subscriber {name} has the id or key {shown(found.asked)}: it is finished, or never came."
    if not all(each.is_complete for each in found.searched):
        verdict = (
            f"No event with the id or key {shown(found.asked)} was found among the first that subscriber {name} has not finished."
        )
    return [(verdict, lines)]


def _of_key(found: EventExplanation) -> list[tuple[str, dict[str, str]]]:
    name, events = found.subscriber, found.events
    newest = f"The newest {counted(len(events), 'event')} with it" if len(events) > 1 else "The newest event with it"
    verdict = f"No event of subscriber {name} has the id {shown(found.asked)}, but it is a record key. {newest}:"
    lines = {
        "search": "; ".join(map(_search_text, found.searched)),
        "try": f"at one of them: streams-app events explain {name} {_position(events[0])}",
        "lag": worker_text(found.worker, found.idempotent),
    }
    verdicts: list[tuple[str, dict[str, str]]] = [
        (f"{_name(event)} {event_verdict_text(event, found.at_ms)}.", {}) for event in events
    ]
    return [(verdict, {}), *verdicts, ("", lines)]


def _folded(found: FoldedEventState) -> tuple[str, dict[str, str]]:
    name = f"{found.source}:{found.partition}:{found.offset}"
    drops = list(map(dropped_text, found.drops))
    if found.verdict == "not-folded":
        return f"{name} is not folded yet.", {"read": _read_text(found), "log": f"it ends at {found.log_end}"}
    if found.verdict == "no-group":
        perhaps = (f"perhaps with {shown_key(drop.key)}: {text}" for drop, text in zip(found.drops, drops, strict=True))
        return f"{name} is in no known group: {found.why}.", {"dropped": "; ".join(perhaps)}
    group = f"group {shown_key(found.key)} of fold {found.fold}"
    more = f"streams-app groups explain {shlex.quote(escaped(found.group))} --fold {found.fold}"
    what = {
        "dropped": f"was folded into {group}, which was dropped: it is in no record",
        "open": f"is folded into {group}, which is open: its record has not been emitted yet",
        "closed": f"was folded into {group}, which is closed: its record is in {found.output}, unless the group was dropped more "
        "than a week ago",
    }
    return f"{name} {what[found.verdict]}.", {"dropped": "; ".join(drops), "more": more}


def _read_text(found: FoldedEventState) -> str:
    shard = f"{found.source}-{found.partition}"
    if found.read_to is None:
        return f"no worker has ever claimed {shard} for fold {found.fold}"
    return f"{shard} is read up to offset {found.read_to}"


def _search_text(searched: SearchedOffsets) -> str:
    text = f"{searched.topic} from the committed offsets on ({counted(searched.above, 'offset')})"
    if searched.since_ms is not None:
        text += f" and below them since {time_text(searched.since_ms)} ({counted(searched.below, 'offset')})"
    if searched.unseen:
        everything = searched.above + searched.below + searched.unseen
        text += f", but not {counted(searched.unseen, 'offset')} more: --limit {everything} looks at them, too"
    return text


def worker_text(found: SubscriberInWorker, idempotent: Idempotent = "unknown") -> str:
    """Describe how many events of a subscriber wait, run or are retried in the worker on this machine, or why this is unknown."""
    if found.worker is None:
        return "no worker was asked, as http.port is 0"
    if found.fault:
        return f"the worker at {found.worker} {found.fault}"
    text = f"in the worker at {found.worker} {found.waiting:,} wait, {found.running:,} run, {found.retrying:,} wait for a retry"
    waits = [waiting_text(what, idempotent) for what in found.waits_for]
    return "; ".join([f"{text}, {_SUSPENDED}" if found.is_suspended else text, *waits])


def _position(found: EventState) -> str:
    return f"{found.topic}:{found.partition}:{found.offset}"


def _name(found: EventState) -> str:
    position = _position(found)
    return f"Event {position}" if found.id in ("", position) else f"Event {shown(found.id)} ({position})"


def event_verdict_text(found: EventState, now_ms: int) -> str:
    """Say what has become of an event, as the end of a sentence that begins with its name."""
    match found.verdict:
        case "hidden":
            since = "is in the log, hidden by a transaction that is open since offset"
            return f"{since} {found.log_end}: no consumer reads past it before that has ended"
        case "dead-letter":
            return _rejected_text(found)
        case "other-type":
            return f"is of another type, {shown(found.type)}: not for this subscriber"
        case "retrying":
            return _retrying_text(found.attempts, now_ms)
        case "waiting":
            return _waiting_text(found.offset, found.commit)
    return _VERDICTS[found.verdict]


def _retrying_text(attempts: EventAttempts | None, now_ms: int) -> str:
    assert attempts is not None  # an event without stored attempts has another verdict
    left_ms = (attempts.due_ms or 0) - now_ms
    when = f"due in {span(left_ms)}" if left_ms > 0 else "due now"
    failed = f"has failed {counted(attempts.attempts, 'time')}" if attempts.attempts else _UNCOUNTED
    return f"{failed} and waits for its next attempt, {when}"


def _waiting_text(offset: int, commit: EventCommit | None) -> str:
    assert commit is not None  # an event without a commit has another verdict
    behind = f"waits for its turn, behind {counted(offset - commit.offset, 'offset')} at most"
    if commit.finished_above is not None:
        return behind
    # Only the metadata tells which events above the committed offset are finished.
    return f"{behind}, unless it is finished: the commit does not record which events above its offset are"


def _rejected_text(found: EventState) -> str:
    last = [each for each in found.dead_letters if not each.is_late][-1]
    late = ", and has ended well after all" if any(each.is_late for each in found.dead_letters) else ""
    back = ""
    if last.is_replayed:
        back = ", was replayed since, and is finished" if found.is_copy_finished else ", and was replayed since"
    return f"is a dead letter: {escaped(last.reason)}{late}{back}"


def _committed_text(found: EventState, group: str) -> str:
    tp = f"{found.topic}-{found.partition}"
    if found.commit is None:
        return f"group {group} has committed nothing for {tp}"
    side = "is" if found.offset < found.commit.offset else "is not"
    return f"group {group} has committed {found.commit.offset} for {tp}: events below it are finished, this {side}"


def _metadata_text(found: EventState) -> str:
    if (commit := found.commit) is None:
        return "none"
    if commit.finished_above is None:
        return "none that can be read: it is unknown which events above the committed offset are finished"
    text = f"{counted(commit.finished_above, 'offset')} above the committed offset finished, {commit.begun_above} begun"
    if found.offset < commit.offset or found.offset >= found.log_end:
        return text
    return f"{text}; this one is {found.by_commit}. It is as old as the last commit"


def _redis(found: EventState, now_ms: int) -> str:
    if found.redis_fault:
        return f"not known: {found.redis_fault}"
    if (attempts := found.attempts) is None:
        return "nothing is kept of it: it does not wait for a retry, and was not seen running"
    crashes = f"; {counted(attempts.crashes, 'death')} of its process may be its doing" if attempts.crashes else ""
    if attempts.is_running:
        watched = ", begun with a few others at most, and watched for a while" if attempts.was_watched else ""
        return f"attempt {attempts.attempts} is in progress{watched}{crashes}"
    left_ms = (attempts.due_ms or 0) - now_ms
    when = f"in {span(left_ms)} ({time_text(attempts.due_ms or 0)})" if left_ms > 0 else "now"
    return f"{counted(attempts.attempts, 'attempt')} made; the next one is due {when}{crashes}"


def _last_attempt(found: EventState) -> str:
    """Describe when an event that keeps failing becomes a dead letter; "" if it does not wait, or this is not known."""
    attempts = found.attempts
    if attempts is None or attempts.rejected_in_ms is None:
        return ""
    return f"; if it keeps failing, one is made after attempt {attempts.max_attempts}, in {span(attempts.rejected_in_ms)} at most"


def _dead_letters(dead_letters: Sequence[EventDeadLetter], topic: str) -> str:
    if not dead_letters:
        return f"none of it in {topic}"
    parts = [
        f"{escaped(each.reason)} at {time_text(each.at_ms)} after "
        f"{'? attempts' if each.attempts is None else counted(each.attempts, 'attempt')}: "
        f"{escaped(each.detail)}{', replayed since' if each.is_replayed else ''}"
        for each in dead_letters
    ]
    return f"in {topic}: {'; '.join(parts)}"


def _lag(found: EventState) -> str:
    end = found.high_watermark
    hidden = f"; an open transaction hides {end - found.log_end:,} of them" if end > found.log_end else ""
    if found.commit is None:
        return f"the log ends at {end}{hidden.replace(' of them', ' offsets')}"
    return f"the log ends at {end}, {counted(max(0, end - found.commit.offset), 'offset')} above the committed offset{hidden}"
