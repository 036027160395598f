"""The rule by which a claim decides whether a log still is the one that was read, and from which offset to read it (pure).

A topic may be deleted and created again under its name, and a broker may lose the end of a log, for example by a restart on an
older copy of its disk. Offsets alone show neither once the log has grown. So readers store a :class:`StoredPosition`. The rule
compares it with the :class:`PresentLog`; each kind of reader only declares its :class:`Policy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from streams_app.delivery.fingerprints import Fingerprint


class LogVerdict(Enum):
    """What became of the log since its reader stored a position."""

    SAME = "nothing shows a change"
    RECREATED = "the topic has another id; or no id tells, the reader was reset, and the log ends below what was read"
    TRUNCATED = "fingerprints differ; or the reader was reset, and not all that was read has fingerprints that match"
    WENT_BACK = "the topic is the same, no fingerprint is stored, the reader was reset, and the log ends below what was read"
    SHORTER = "no fingerprint is stored, and the log ends below what was read; the reader was not reset: the end may be outdated"
    UNCOMPARED = "the topic is the same, but the reader was reset, and no fingerprint is stored: the log may have grown since"
    UNIDENTIFIED = "the reader was reset, and neither id nor fingerprints identify the log, which may have grown since"


class Action(Enum):
    """What a reader does: continue, read again from an offset, begin anew, or wait for an operator."""

    CONTINUE = "continue"
    REREAD = "reread"
    RESTART = "restart"
    REJECT = "reject"


class StoredPosition(NamedTuple):
    """What a reader has stored about its log.

    Attributes:
        read_to: Offset below which everything was read; above the committed offset if records above it are finished.
        topic_id: "" if it is unknown.
        fingerprints: Of some of the records that were read, in the order of their offsets.
    """

    read_to: int
    topic_id: str = ""
    fingerprints: tuple[Fingerprint, ...] = ()


class PresentLog(NamedTuple):
    """What the broker says about a log, and the client about its reader.

    Attributes:
        topic_id: "" if the broker has no topic ids.
        end: Last stable offset; it may be outdated shortly after an election.
        was_reset: Whether the client has just reset the position of its reader, because the log ended below it.
    """

    topic_id: str
    begin: int
    end: int
    was_reset: bool = False


class Continuity(NamedTuple):
    """The verdict, and the offset from which the log must be read to miss nothing."""

    verdict: LogVerdict
    offset: int


class Continuation(NamedTuple):
    """What a reader must do, and the offset that goes with it; for :attr:`Action.RESTART`, the beginning of the log."""

    action: Action
    offset: int


@dataclass(frozen=True, slots=True)
class Policy:
    """What one reader does for each verdict.

    Attributes:
        reader: Name for messages, such as ``fold x``.
        advice: How an operator makes the reader read the present log, for :attr:`Action.REJECT`; "" if it never refuses.
    """

    reader: str
    actions: Mapping[LogVerdict, Action] = field(hash=False)
    advice: str = ""


def is_recreated(stored_id: str, present_id: str) -> bool:
    """Return whether a topic was deleted and created again: its stored id differs from the present one; "" is unknown."""
    return bool(stored_id and present_id and stored_id != present_id)


def is_comparable(stored: StoredPosition, topic_id: str) -> bool:
    """Return whether fingerprints can be compared with the log; without topic ids, they are not."""
    return bool(stored.fingerprints and topic_id and not is_recreated(stored.topic_id, topic_id))


def continuity_of(stored: StoredPosition, log: PresentLog, common: int | None = None) -> Continuity:
    """Decide whether a log continues what was read.

    Args:
        common: Result of :func:`.fingerprints.common_end` for the stored fingerprints; ignored if :func:`is_comparable` is false.
    """
    if is_recreated(stored.topic_id, log.topic_id):
        return Continuity(LogVerdict.RECREATED, log.begin)
    if is_comparable(stored, log.topic_id):
        return _compared(stored, log, common)
    is_beyond = stored.read_to > log.end
    if not log.was_reset:
        return Continuity(LogVerdict.SHORTER if is_beyond else LogVerdict.SAME, stored.read_to)
    is_same_topic = bool(stored.topic_id and log.topic_id)
    if is_beyond:
        return Continuity(LogVerdict.WENT_BACK if is_same_topic else LogVerdict.RECREATED, log.begin)
    return Continuity(LogVerdict.UNCOMPARED if is_same_topic else LogVerdict.UNIDENTIFIED, stored.read_to)


def _compared(stored: StoredPosition, log: PresentLog, common: int | None) -> Continuity:
    if common is None and log.was_reset:
        # The log has ended below the reader. Offsets after the newest fingerprint, such as those of markers, may be lost.
        common = stored.fingerprints[-1].offset + 1
        common = common if max(log.begin, common) < stored.read_to else None
    if common is None:
        return Continuity(LogVerdict.SAME, stored.read_to)
    return Continuity(LogVerdict.TRUNCATED, max(log.begin, min(common, log.end)))


def explanation(reader: str, stored: StoredPosition, log: PresentLog, verdict: LogVerdict) -> tuple[str, str]:
    """Say for operators what is wrong with a log, as the end of a sentence that begins with its name, and why."""
    recreated = "the topic was deleted and created again"
    if is_recreated(stored.topic_id, log.topic_id):
        return f"is another log than the one that {reader} has read", recreated
    if verdict in (LogVerdict.UNCOMPARED, LogVerdict.UNIDENTIFIED):
        return f"may be another log than the one that {reader} has read", "it has ended below the position of the client"
    lost = "the broker has lost events"
    if verdict is LogVerdict.SHORTER and not (stored.topic_id and log.topic_id):
        lost = f"{lost}, or {recreated}"
    why = recreated if verdict is LogVerdict.RECREATED else lost
    return f"ends at offset {log.end}, but {reader} has read up to offset {stored.read_to - 1}", why
