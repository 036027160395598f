"""Claim of a partition by one fold: what it does if the log is not the one that was folded, and where a new fold begins.

Before this, Kafka has confirmed that the partition is assigned to this worker, see :mod:`streams_app.delivery.claimer`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from streams_app.delivery.claim import Claim
from streams_app.delivery.fingerprints import up_to
from streams_app.delivery.log_continuity import Action, LogVerdict, Policy, StoredPosition
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.folding.agents.emitter import Emitter
from streams_app.folding.shard.shard import Shard
from streams_app.health.metrics import Metrics

logger = logging.getLogger(__name__)

ACTIONS: Final = {
    LogVerdict.SAME: Action.CONTINUE,
    LogVerdict.RECREATED: Action.REJECT,
    LogVerdict.TRUNCATED: Action.REREAD,
    LogVerdict.WENT_BACK: Action.REREAD,
    LogVerdict.SHORTER: Action.CONTINUE,
    LogVerdict.UNCOMPARED: Action.CONTINUE,
    LogVerdict.UNIDENTIFIED: Action.CONTINUE,
}
"""Reading again emits all open groups, so it needs proof. Versions of a recreated topic are too low until a reset."""


def policy_of(fold: str) -> Policy:
    """Return what a fold does if the log is not the one that was read."""
    advice = f"Run `streams-app reset --fold {fold}` to start over; with --emit, open groups are emitted first."
    return Policy(f"fold {fold}", ACTIONS, advice)


async def check_topic(shard: Shard, claim: Claim) -> str:
    """Return the id of the source topic when its events were folded, "" if it is unknown; raise OtherLogError if it has changed.

    Call this before the first commit: a watermark of the former log that is committed afterwards would count as one of the new log.
    """
    folded_id = await shard.store.topic_id()
    await claim.continuation(StoredPosition(0, folded_id), policy_of(shard.fold.name))
    return folded_id


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
    """Skip events that retention has removed before they were folded, after the claim of a shard.

    Before it skips events, it emits the open groups. If the fence is at the end of the log, the shard counts as caught up at the
    time at which the broker was asked.

    Args:
        begin: Position of the fold at the claim. Skipped events count as lost only from this offset on, and only above the fence.
    """
    bounds = await claim.log_bounds_now()
    if shard.fence + 1 < bounds.begin:
        await _skip_lost(shard, emitter, begin.offset, bounds.begin, metrics)
    if shard.fence + 1 >= bounds.end:
        # All events that are read from here on arrived after this time.
        shard.clock.caught_up_at_ms = bounds.asked_ms


async def rewind_if_lost(shard: Shard, emitter: Emitter, claim: Claim, folded_id: str) -> None:
    """If the broker has lost folded events, emit the open groups of a shard, and move its fence back below the first lost offset.

    Folding must continue there, because the broker may give the lost offsets to other events. Open groups cannot stay: it is
    unknown which of their events the broker has lost, and new events at offsets below the last offset of a group would count as
    folded. From then on, ids and versions of records include the number of lost offsets: otherwise a new record might have the same
    id as a record of the lost events.

    Args:
        folded_id: Result of :func:`check_topic`.

    Raises:
        OtherLogError: The log no longer contains the folded events, and they may be those of another topic.
    """
    folded = shard.fence if shard.in_progress is None else shard.in_progress.to
    action, common = await claim.continuation(StoredPosition(folded + 1, folded_id, shard.log), policy_of(shard.fold.name))
    if action is not Action.REREAD:
        return
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
