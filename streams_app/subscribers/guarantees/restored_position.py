"""Where a subscriber goes on in a partition: by the last commit and its note, else by what Redis was told."""

from __future__ import annotations

import asyncio
import logging
from itertools import count
from typing import Final, NamedTuple

from streams_app.delivery.batch import TP
from streams_app.delivery.fingerprints import Fingerprint, up_to
from streams_app.delivery.processor import NO_OFFSET, Claim, OffsetAndMetadata, OtherLogError
from streams_app.redis_access.client import REDIS_ERRORS
from streams_app.subscribers.execution.context import SubscriberContext
from streams_app.subscribers.state.intervals import Interval
from streams_app.subscribers.state.offset_metadata import Note, decoded
from streams_app.subscribers.state.offset_tracker import NOTHING, Above, OffsetTracker

logger = logging.getLogger(__name__)

REDIS_SECONDS: Final = 2.0
"""So long whoever can do without Redis waits for its answer."""

OTHER: Final = "is another log than the one that was read"

CLAIMS: Final = count(1)
"""Numbers of the claims of this process."""


def begin_of(around: SubscriberContext, claim: Claim) -> int:
    """Where a subscriber begins that has no commit."""
    # What was put back is for those who were there already: one that has not read that topic yet leaves out nothing of it.
    from_begin = around.subscriber.start == "earliest" or claim.tp.topic == around.again
    return claim.log_bounds.begin if from_begin else claim.log_bounds.end


async def mark_in_redis(tp: TP, around: SubscriberContext, claim: Claim) -> OffsetAndMetadata | None:
    """How far a subscriber is in a partition without a commit, by what Redis was told: ``start`` is for its first start alone.

    It is only read: Kafka has not been asked yet whether the partition is ours.

    Returns:
        None where it has never been there. Also where Redis does not answer, or has a state that does not name its log, if the
        subscriber begins with the log, so that nothing is lost, and may run again what has run.

    Raises:
        RedisError, OSError, TimeoutError: Redis does not answer, and the end of the log may not be where to begin.
        KafkaError: To be tried again.
    """
    may_begin_anew = around.subscriber.idempotent == "yes" and begin_of(around, claim) == claim.log_bounds.begin
    try:
        async with asyncio.timeout(REDIS_SECONDS if may_begin_anew else None):
            mark = await around.store(tp, claim.token).progress()
    except (*REDIS_ERRORS, TimeoutError):
        if may_begin_anew:
            return None
        raise
    # The embedded broker, which keeps no notes, has lost its logs and the commits in them together.
    if mark is None or (mark.offset > claim.log_bounds.end and not await claim.broker_keeps_metadata()):
        return None
    # Kafka removes the commits in a topic that is deleted, too: without a note nobody knows of which log Redis speaks.
    if may_begin_anew and claim.topic_id and decoded(mark.metadata, mark.offset, NO_OFFSET) is None:
        return None
    logger.warning(
        "the group has no commit there any more, going on where Redis says subscriber=%s source=%s offset=%d",
        around.subscriber.name, tp, mark.offset,
    )  # fmt: skip
    return mark


def is_of_another_log(note: Note, topic_id: str) -> bool:
    """Whether a note speaks of a topic that was there before; a broker may give no ids."""
    return bool(note.topic_id and topic_id and note.topic_id != topic_id)


def noted(claim: Claim, mark: OffsetAndMetadata) -> Note | None:
    """What the note of a commit says. Where topics have ids, it is them that say of which log it speaks."""
    return decoded(mark.metadata, mark.offset, NO_OFFSET if claim.topic_id else claim.log_bounds.end)


async def was_made_by_hand(claim: Claim) -> bool:
    """Whether somebody has moved the commit with a tool of Kafka: then nothing above it is finished, whatever Redis says."""
    return claim.mark is not None and not claim.mark.metadata and await claim.broker_keeps_metadata()


def overtaken(above: Above, low: int, begin: int) -> int:
    """How many offsets that are not finished lie below the begin of the log (pure).

    Args:
        above: What is finished from the committed offset on.
        low: The committed offset.
        begin: First offset of the log.
    """
    return begin - low - sum(max(0, min(run.end, begin) - max(run.begin, low)) for run in above.finished)


class RestoredPosition(NamedTuple):
    """Where a subscriber goes on in a partition that was committed before.

    Attributes:
        window: Its window.
        read: Fingerprints of what was read.
        common: The offset from which on the log is another one than was read, as it went back; None: it did not.
    """

    window: OffsetTracker
    read: tuple[Fingerprint, ...] = ()
    common: int | None = None

    def is_lost(self, offset: int) -> bool:
        """Whether what is known of an offset is known of a record that the broker has lost."""
        return self.common is not None and offset >= self.common


def below(above: Above, common: int) -> Above:
    """What is finished and begun below an offset (pure)."""
    runs = [Interval(run.begin, min(run.end, common)) for run in above.finished if run.begin < common]
    return Above(tuple(runs), tuple(offset for offset in above.begun if offset < common))


async def found(tp: TP, around: SubscriberContext, claim: Claim, mark: OffsetAndMetadata) -> RestoredPosition:
    """The window of a partition that was committed before; where its log went back, all that follows is unfinished.

    Raises:
        OtherLogError: The log is not the one of which the commit speaks.
        KafkaError, TimeoutError: To be tried again.
    """
    note = noted(claim, mark)
    is_same = note is not None and bool(claim.topic_id) and note.topic_id == claim.topic_id
    if note is not None and is_same:
        read_to = max([mark.offset, *(run.end for run in note.above.finished), *(one.offset + 1 for one in note.read)])
        if (common := await claim.common_end(note.read, read_to)) is not None:
            window = OffsetTracker(next(CLAIMS), min(mark.offset, common), below(note.above, common))
            return RestoredPosition(window, up_to(note.read, common), common)
    is_other = note is not None and is_of_another_log(note, claim.topic_id)
    # The embedded broker, which keeps no notes, names a log's end too low: just after the first record of the last batch.
    is_beyond = mark.offset > claim.log_bounds.end and await claim.broker_keeps_metadata()
    if is_other or is_beyond or (claim.was_reset and not is_same):
        what = f"ends at {claim.log_bounds.end}, but was read up to {mark.offset}: its log went back" if is_same else OTHER
        advice = f"run `streams-app reset --subscriber {around.subscriber.name} --at earliest` to read it from its begin"
        raise OtherLogError(tp, what, advice)
    if mark.metadata and note is None:
        logger.warning("the note of the commit says nothing, events above it may run again source=%s offset=%d", tp, mark.offset)
    window = OffsetTracker(next(CLAIMS), mark.offset, NOTHING if note is None else note.above)
    if claim.log_bounds.begin > mark.offset:
        lost = overtaken(NOTHING if note is None else note.above, mark.offset, claim.log_bounds.begin)
        logger.error(
            "retention overtook the subscriber, events are lost subscriber=%s source=%s offsets=%d-%d events=%d",
            around.subscriber.name, tp, mark.offset, claim.log_bounds.begin - 1, lost,
        )  # fmt: skip
        around.figures.overtaken(lost)
        window.cover(mark.offset, claim.log_bounds.begin, ())
    return RestoredPosition(window, () if note is None else note.read)
