"""Determines where a subscriber continues in a partition: at its last commit or, without one, at the position in Redis."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

from streams_app.delivery.batch import TP
from streams_app.delivery.claim import Claim, ImpossibleClaimError
from streams_app.delivery.fingerprints import Fingerprint, up_to
from streams_app.delivery.log_continuity import Action, LogVerdict, Policy
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.processor import NO_OFFSET
from streams_app.redis_access.client import REDIS_ERRORS
from streams_app.subscribers.execution.context import SubscriberContext
from streams_app.subscribers.state.initial_offsets import NO_METADATA, how_to_set_offsets
from streams_app.subscribers.state.intervals import Interval
from streams_app.subscribers.state.offset_metadata import OffsetMetadata, decoded, stored_position
from streams_app.subscribers.state.offset_tracker import NOTHING, OffsetsAbove, OffsetTracker

logger = logging.getLogger(__name__)

REDIS_SECONDS: Final = 2.0
"""How long a subscriber that can continue without Redis waits for a reply."""


ACTIONS: Final = {
    LogVerdict.SAME: Action.CONTINUE,
    LogVerdict.RECREATED: Action.REJECT,
    LogVerdict.TRUNCATED: Action.REREAD,
    LogVerdict.WENT_BACK: Action.REJECT,
    LogVerdict.SHORTER: Action.REJECT,
    LogVerdict.UNCOMPARED: Action.CONTINUE,
    LogVerdict.UNIDENTIFIED: Action.REJECT,
}
"""Without fingerprints, it is unknown which events would run again, so an operator decides."""


def policy_of(subscriber: str) -> Policy:
    """Return what a subscriber does if the log is not the one that was read."""
    advice = f"Run `streams-app reset --subscriber {subscriber} --at earliest` to read it from its beginning."
    return Policy(f"subscriber {subscriber}", ACTIONS, advice)


class RestoredPosition(NamedTuple):
    """Position at which a subscriber continues in a partition.

    Attributes:
        read: Fingerprints of some of the records that were read, to identify the log.
        common: First offset at which the log may differ from the log that was read; None if the log was not truncated.
        is_first_start: Whether the subscriber has never read this partition.
    """

    tracker: OffsetTracker
    read: tuple[Fingerprint, ...] = ()
    common: int | None = None
    is_first_start: bool = False

    def is_lost(self, offset: int) -> bool:
        return self.common is not None and offset >= self.common


async def restored_position(tp: TP, context: SubscriberContext, claim: Claim) -> RestoredPosition:
    """Return the position at which a subscriber continues in a partition: that of its commit.

    Without a commit, it continues at the position in Redis. Without either, it begins at the offset that ``start`` declares. With
    ``idempotent="no"``, there must be a commit, because only it lists the begun events.

    Raises:
        NewerFormatError: A newer version has written the position, in a format that this version does not know.
        ImpossibleClaimError: The position belongs to another log, for example because the topic was recreated. Or there is no
            commit that lists the begun events, although the subscriber needs one.
    """
    if claim.committed is None and context.subscriber.requires_commit:
        name = context.subscriber.name
        raise ImpossibleClaimError(tp, f"has no commit of subscriber {name!r}", how_to_set_offsets(name))
    position = claim.committed or await position_in_redis(tp, context, claim)
    if position is None:
        return RestoredPosition(OffsetTracker(initial_offset(context, claim)), is_first_start=True)
    restored = await position_at(tp, context, claim, position)
    if context.subscriber.requires_commit and metadata_of(claim, position) is None:
        name = context.subscriber.name
        if not await claim.broker_keeps_metadata():
            raise ImpossibleClaimError(tp, f"cannot be claimed: {NO_METADATA}", "use another broker")
        what = f"has a commit that does not record the begun events of subscriber {name!r}"
        raise ImpossibleClaimError(tp, what, how_to_set_offsets(name))
    return restored


def initial_offset(context: SubscriberContext, claim: Claim) -> int:
    """Return the offset at which a subscriber begins at its first start in a partition."""
    # Replayed events name their subscriber, so even one that is new to the replay topic must not skip any.
    from_begin = context.subscriber.start == "earliest" or claim.tp.topic == context.replays_topic
    return claim.log_bounds.begin if from_begin else claim.log_bounds.end


async def position_in_redis(tp: TP, context: SubscriberContext, claim: Claim) -> OffsetAndMetadata | None:
    """Return the position that Redis has for a subscriber without a commit; None if it begins at its initial offset.

    A commit may be missing because Kafka removes commits after ``offsets.retention.minutes``. Nothing is written to Redis, because
    Kafka has not confirmed yet that this worker owns the partition.

    Returns:
        None in these cases:

        - Redis has no position, as at the first start.
        - The position is beyond the end of the log, and not known to be of this topic: topic and commits were deleted together.
        - The subscriber may run events twice, its initial offset is the start of the log, and one of two faults occurs: Redis does
          not answer, or the topic has an id but the position has no valid metadata. No event is lost, but some may run twice.

    Raises:
        RedisError, OSError, TimeoutError: Redis does not answer, and the last case does not apply: at its initial offset, the
            subscriber could skip events, or repeat events that must not run twice.
    """
    may_begin_anew = context.subscriber.is_repeatable and initial_offset(context, claim) == claim.log_bounds.begin
    try:
        async with asyncio.timeout(REDIS_SECONDS if may_begin_anew else None):
            position = await context.store(tp, claim.token).progress()
    except (*REDIS_ERRORS, TimeoutError):
        if may_begin_anew:
            return None
        raise
    if position is None:
        return None
    metadata = decoded(position.metadata, position.offset, NO_OFFSET)
    is_same_topic = metadata is not None and bool(claim.topic_id) and metadata.topic_id == claim.topic_id
    if position.offset > claim.log_bounds.end and not is_same_topic:
        return None
    # Kafka also removes the commits of a deleted topic: without metadata, the position may be that of the former log.
    if may_begin_anew and claim.topic_id and metadata is None:
        return None
    logger.warning(
        "the consumer group has no commit, continuing at the position in redis subscriber=%s source=%s offset=%d",
        context.subscriber.name, tp, position.offset,
    )  # fmt: skip
    return position


async def position_at(tp: TP, context: SubscriberContext, claim: Claim, position: OffsetAndMetadata) -> RestoredPosition:
    """Check that a position from a commit or from Redis belongs to this log, and restore its finished offsets and fingerprints.

    If the log was truncated, it may contain other records from some offset on; all offsets from there on become unfinished. If
    retention has removed offsets before they were finished, they are counted as lost, and become finished.

    Raises:
        OtherLogError: The position belongs to another log.
    """
    metadata = metadata_of(claim, position)
    policy = policy_of(context.subscriber.name)
    action, common = await claim.continuation(stored_position(position.offset, metadata), policy)
    if action is Action.REREAD and metadata is not None:
        tracker = OffsetTracker(min(position.offset, common), below(metadata.above, common))
        return RestoredPosition(tracker, up_to(metadata.read, common), common)
    if position.metadata and metadata is None:
        logger.warning(
            "commit metadata is not valid, events above the commit may run again source=%s offset=%d", tp, position.offset
        )
    above = NOTHING if metadata is None else metadata.above
    tracker = OffsetTracker(position.offset, above)
    if claim.log_bounds.begin > position.offset:
        lost = unfinished_below(above, position.offset, claim.log_bounds.begin)
        logger.error(
            "retention overtook the subscriber, events are lost subscriber=%s source=%s offsets=%d-%d events=%d",
            context.subscriber.name, tp, position.offset, claim.log_bounds.begin - 1, lost,
        )  # fmt: skip
        context.subscriber_metrics.removed_by_retention(lost)
        tracker.cover(position.offset, claim.log_bounds.begin, ())
    return RestoredPosition(tracker, () if metadata is None else metadata.read)


def metadata_of(claim: Claim, position: OffsetAndMetadata) -> OffsetMetadata | None:
    """Decode the metadata of a position; None if it is missing or not valid.

    Without a topic id, offsets beyond the end of the log are not valid.
    """
    # A topic id identifies the log. Without one, metadata with offsets beyond the end of the log belongs to another log.
    return decoded(position.metadata, position.offset, NO_OFFSET if claim.topic_id else claim.log_bounds.end)


async def was_set_by_hand(claim: Claim) -> bool:
    """Return whether an operator has set the offset with a Kafka tool; if so, no offset above it counts as finished.

    Such a commit has no metadata, although the broker stores metadata.
    """
    return claim.committed is not None and not claim.committed.metadata and await claim.broker_keeps_metadata()


def unfinished_below(above: OffsetsAbove, low: int, begin: int) -> int:
    """Return the number of unfinished offsets from the committed one, ``low``, up to but not including the first one of the log."""
    return begin - low - sum(max(0, min(run.end, begin) - max(run.begin, low)) for run in above.finished)


def below(above: OffsetsAbove, common: int) -> OffsetsAbove:
    """Return the offsets below ``common``, the first offset at which the log may differ from what was read."""
    runs = [Interval(run.begin, min(run.end, common)) for run in above.finished if run.begin < common]
    return OffsetsAbove(tuple(runs), tuple(offset for offset in above.begun if offset < common))
