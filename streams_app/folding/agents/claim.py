"""Claim of a partition by one fold: detects a recreated topic and lost offsets, and determines where the fold begins.

Before this, Kafka has confirmed that the partition is assigned to this worker, see :mod:`streams_app.delivery.claimer`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from streams_app.delivery.claim import Claim
from streams_app.delivery.fingerprints import OTHER, Fingerprint, up_to
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.processor import OtherLogError
from streams_app.folding.agents.emitter import Emitter
from streams_app.folding.shard.shard import Shard
from streams_app.health.metrics import Metrics

logger = logging.getLogger(__name__)

UNKNOWN_RECORD: Final = Fingerprint(0, OTHER)
"""Fingerprint of a record that was read, but whose content is unknown."""


def is_recreated(folded: str, present: str) -> bool:
    """Return whether the topic was recreated: its id when events were folded differs from the present one; "" is unknown."""
    return bool(folded and present and folded != present)


def topic_recreated_error(shard: Shard, claim: Claim, what: str) -> OtherLogError:
    """Return the error that ends a worker because a source topic was recreated; ``what`` describes how the log differs."""
    command = f"streams-app reset --fold {shard.fold.name}"
    advice = f"the topic was deleted and created again. Run `{command}` to start over; with --emit, open groups are emitted first."
    return OtherLogError(claim.tp, what, advice)


async def check_log(shard: Shard, claim: Claim) -> None:
    """Raise OtherLogError if the source topic was recreated since its events were folded, which the topic id in Redis shows.

    Call this before the first commit: a watermark of the former log that is committed afterwards would count as one of the new log.
    """
    if is_recreated(await shard.store.topic_id(), claim.topic_id):
        raise topic_recreated_error(shard, claim, f"is another log than the one fold {shard.fold.name!r} has folded")


async def initial_position(shard: Shard, claim: Claim) -> OffsetAndMetadata:
    """Determine where a fold begins that has no position in the last commit; commit this offset and return it.

    The offset is the low watermark in Redis or, if Redis has no state, the first offset of the log.

    If Redis has no state and the fold has ``start = "latest"``, the result of :func:`partitions_at_first_start` is the metadata of
    the offset. If the partition already existed at the first start, the offset is the end of the log.
    """
    # Kafka may have deleted the commit while Redis still has the state. Then the watermark in Redis is correct.
    low = await shard.store.watermark()
    metadata = ""
    if low is None:
        low = claim.log_bounds.begin
        if shard.fold.start == "latest":
            count = partitions_at_first_start(claim.tp.partition, await claim.offsets_in_other_partitions(), claim.partitions)
            low = claim.log_bounds.end if claim.tp.partition < count else claim.log_bounds.begin
            metadata = str(count)
    begin = OffsetAndMetadata(low, metadata)
    await claim.commit_now(begin)
    return begin


async def apply_log_bounds(shard: Shard, emitter: Emitter, claim: Claim, begin: OffsetAndMetadata, metrics: Metrics) -> None:
    """Check that the log of a newly claimed shard still contains the folded events; skip events that retention has removed.

    Before it skips events, it emits the open groups. If the fence is at the end of the log, the shard counts as caught up at the
    time at which the broker was asked.

    Args:
        begin: Position of the fold at the claim. Skipped events count as lost only from this offset on, and only above the fence.

    Raises:
        OtherLogError: The log no longer contains the folded events.
    """
    bounds = await claim.log_bounds_now()
    # The end that a broker returns may be too low: the embedded one returns the first record of the last batch. Only a reader that
    # was reset shows that the folded events no longer exist.
    folded = shard.fence if shard.in_progress is None else shard.in_progress.to
    if claim.was_reset and folded + 1 > bounds.end:
        raise topic_recreated_error(
            shard, claim, f"ends at offset {bounds.end}, but fold {shard.fold.name!r} has folded up to {folded}"
        )
    if shard.fence + 1 < bounds.begin:
        await _skip_lost(shard, emitter, begin.offset, bounds.begin, metrics)
    if shard.fence + 1 >= bounds.end:
        # All events that are read from here on arrived after this time.
        shard.clock.caught_up_at_ms = bounds.asked_ms


async def lost_by_broker(shard: Shard, claim: Claim) -> int | None:
    """Return the first offset that the broker has lost of the folded events, after lowering the position in the next commit to it.

    Folding must continue there, because the broker may give the lost offsets to other events. Return None if none is lost.
    """
    folded = shard.fence if shard.in_progress is None else shard.in_progress.to
    kept = shard.log
    # A state without fingerprints has only an offset. The end that a broker returns may be too low, see apply_log_bounds().
    if not kept and claim.was_reset and folded + 1 > (await claim.log_bounds_now()).end:
        kept = (UNKNOWN_RECORD._replace(offset=folded),)
    return await claim.rewind_if_truncated(kept, folded + 1)


async def rewind_to_common_offset(shard: Shard, emitter: Emitter, common: int) -> None:
    """Emit the open groups of a shard, then move the fence back below ``common``, the first offset at which the log has changed.

    Open groups cannot stay: it is unknown which of their events the broker has lost, and new events at offsets below the last
    offset of a group would count as folded. From then on, ids and versions of records include the number of lost offsets: otherwise
    a new record might have the same id as a record of the lost events.
    """
    folded = shard.fence if shard.in_progress is None else shard.in_progress.to
    await emitter.drain()
    await shard.rewind_to(min(common - 1, shard.fence), up_to(shard.log, common), shard.lost + folded + 1 - common)


def warn_of_lost_state(shard: Shard, claim: Claim, *, had_state: bool) -> None:
    """Log a warning that Redis has lost its state, if a shard whose state is new was folded before.

    It was if this process has claimed it before (``had_state``), or if the last commit is after the beginning of the log.
    """
    if had_state or (claim.committed is not None and claim.committed.offset > claim.log_bounds.begin):
        logger.warning(
            "Redis has lost its state: folding again from %d, records may overlap fold=%s source=%s",
            shard.fence + 1, shard.fold.name, shard.tp,
        )  # fmt: skip


async def _skip_lost(shard: Shard, emitter: Emitter, position: int, begin: int, metrics: Metrics) -> None:
    """Skip offsets below ``begin``, which retention has removed; report the events among them that were never folded."""
    lost_from = max(shard.fence + 1, position)
    if lost_from < begin:
        logger.error(
            "known loss: retention removed events before they were folded fold=%s source=%s offsets=%d-%d",
            shard.fold.name, shard.tp, lost_from, begin - 1,
        )  # fmt: skip
        metrics.known_loss_events.labels(fold=shard.fold.name).inc(begin - lost_from)
    await emitter.drain()
    await shard.skip_to(begin - 1)


def partitions_at_first_start(partition: int, in_others: Mapping[int, OffsetAndMetadata | None], present: int) -> int:
    """Return how many partitions the source had when a fold with ``start = "latest"`` started for the first time.

    The fold reads the partitions that existed then from their ends, and a partition that was added later from its beginning.
    Partitions are numbered from 0 and never removed, so a partition existed then if its number is below the returned count. The
    count is stored as metadata of each position of the fold.

    Args:
        in_others: Positions of the fold in the other partitions, see
            :meth:`streams_app.delivery.claim.Claim.offsets_in_other_partitions`.

    Returns:
        The lowest count in the positions. A position without a count counts as 0, so that the claimed partition counts as added
        later: the fold first started with ``earliest``, or before counts were stored.

        If no other partition has a position, or if the commit of one has no metadata at all, as with a broker that stores none, the
        claimed partition counts as one that existed: the present number of partitions is returned, or ``partition`` + 1 if that is
        higher.
    """
    none_added = max(present, partition + 1)
    if None in in_others.values():
        return none_added
    counts = [
        int(position.metadata) if position.metadata.isdecimal() else 0 for position in in_others.values() if position is not None
    ]
    return min(counts, default=none_added)
