"""What a claim means for one fold: is it the same log, where does it begin, and what has the log lost meanwhile.

Kafka has been asked before whether the partition is ours, see :mod:`streams_app.delivery.claim`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from streams_app.delivery.fingerprints import OTHER, Fingerprint, up_to
from streams_app.delivery.processor import Claim, OffsetAndMetadata, OtherLogError
from streams_app.folding.agents.emitter import Emitter
from streams_app.folding.shard.shard import Shard
from streams_app.health.metrics import Metrics

logger = logging.getLogger(__name__)

UNKNOWN_RECORD: Final = Fingerprint(0, OTHER)
"""Of a record of which no more is known than that it was there."""


def is_recreated(folded: str, present: str) -> bool:
    """Whether a topic was made again (pure).

    Args:
        folded: Id of the topic whose events have been folded; "" where the state has kept none: it takes the topic that is there.
        present: Id of the topic that is there; "" where the broker gives none, so that nobody can tell.
    """
    return bool(folded and present and folded != present)


def topic_recreated_error(shard: Shard, claim: Claim, what: str) -> OtherLogError:
    """The error that ends the worker, with advice what to do."""
    command = f"streams-app reset --fold {shard.fold.name}"
    advice = f"the topic was deleted and made again. Run `{command}` to begin anew; with --emit, open groups leave before that."
    return OtherLogError(claim.tp, what, advice)


async def check_log(shard: Shard, claim: Claim) -> None:
    """Refuses a topic that is not the one whose events have been folded.

    It is called before anything is committed: a watermark of the former log would look like one of the new.

    Raises:
        OtherLogError: The topic was deleted and made again.
    """
    if is_recreated(await shard.store.topic_id(), claim.topic_id):
        raise topic_recreated_error(shard, claim, f"is another log than the one fold {shard.fold.name!r} has folded")


async def initial_mark(shard: Shard, claim: Claim) -> OffsetAndMetadata:
    """The mark with which a fold without one begins: by its state, else by its ``start``; committed before it begins."""
    # Kafka may have forgotten the offset while Redis did not: then its watermark is the truth.
    low = await shard.store.watermark()
    note = ""
    if low is None:
        low = claim.log_bounds.begin
        if shard.fold.start == "latest":
            count = partitions_at_first_start(claim.tp.partition, await claim.offsets_in_other_partitions(), claim.partitions)
            low = claim.log_bounds.end if claim.tp.partition < count else claim.log_bounds.begin
            note = str(count)
    begin = OffsetAndMetadata(low, note)
    await claim.commit_now(begin)
    return begin


async def apply_log_bounds(shard: Shard, emitter: Emitter, claim: Claim, begin: OffsetAndMetadata, metrics: Metrics) -> None:
    """Compares a shard that has just been claimed with the edges of the log.

    Raises:
        OtherLogError: The events that were folded are gone from the log.
        FencedError: Another owner came between.
    """
    bounds = await claim.log_bounds_now()
    # The end a broker names is not proof enough (the embedded one names the last batch's first record): only a reader
    # that was thrown back tells that what was folded is gone.
    folded = shard.fence if shard.in_progress is None else shard.in_progress.to
    if claim.was_reset and folded + 1 > bounds.end:
        raise topic_recreated_error(
            shard, claim, f"ends at offset {bounds.end}, but fold {shard.fold.name!r} has folded up to {folded}"
        )
    if shard.fence + 1 < bounds.begin:
        await _skip_lost(shard, emitter, begin.offset, bounds.begin, metrics)
    if shard.fence + 1 >= bounds.end:
        # Whatever is read from here on arrived after this moment.
        shard.clock.caught_up_at_ms = bounds.asked_ms


async def lost_by_broker(shard: Shard, claim: Claim) -> int | None:
    """The offset from which on to fold once more, where the broker has lost what was folded; None: it has not."""
    folded = shard.fence if shard.in_progress is None else shard.in_progress.to
    kept = shard.log
    # A state without fingerprints says how far it had read, and no more; the end that a broker names is no proof, see go_on().
    if not kept and claim.was_reset and folded + 1 > (await claim.log_bounds_now()).end:
        kept = (UNKNOWN_RECORD._replace(offset=folded),)
    return await claim.common_end(kept, folded + 1)


async def rewind_to_common_offset(shard: Shard, emitter: Emitter, common: int) -> None:
    """Emits what is open, of which some is lost to the broker, and goes back to the offset up to which the log is as it was.

    What is open cannot stay: of its events nobody knows which were lost, and what a group gets from offsets below its last one
    would be taken for folded. Records of what follows have ids and versions of their own, as others with these offsets may be out.
    """
    folded = shard.fence if shard.in_progress is None else shard.in_progress.to
    await emitter.drain()
    await shard.rewind_to(min(common - 1, shard.fence), up_to(shard.log, common), shard.lost + folded + 1 - common)


def warn_of_lost_state(shard: Shard, claim: Claim, *, had_state: bool) -> None:
    """Warns if a shard whose state is new was folded before, as this process or the mark in the commit knows."""
    if had_state or (claim.mark is not None and claim.mark.offset > claim.log_bounds.begin):
        logger.warning(
            "Redis has lost its state: folding again from %d, records may overlap fold=%s source=%s",
            shard.fence + 1, shard.fold.name, shard.tp,
        )  # fmt: skip


async def _skip_lost(shard: Shard, emitter: Emitter, mark: int, begin: int, metrics: Metrics) -> None:
    """Skips what retention has removed: tells the loss first, emits the open groups, and only then moves the fence over it."""
    lost_from = max(shard.fence + 1, mark)
    if lost_from < begin:
        logger.error(
            "known loss: retention removed events before they were folded fold=%s source=%s offsets=%d-%d",
            shard.fold.name, shard.tp, lost_from, begin - 1,
        )  # fmt: skip
        metrics.known_loss_events.labels(fold=shard.fold.name).inc(begin - lost_from)
    await emitter.drain()
    await shard.skip_to(begin - 1)


def partitions_at_first_start(partition: int, elsewhere: Mapping[int, OffsetAndMetadata | None], present: int) -> int:
    """The number of partitions the source had when a fold began; it decides where a partition without a mark begins.

    ``start = "latest"`` is about the first start of a fold. What was produced to a partition that was added later belongs to it
    from the beginning. Partitions are numbered, and only ever added: one was added later if its number is not below the count
    at the first start. That count is the note beside the mark, so whoever sees the one sees the other.

    Args:
        partition: Number of the partition that is claimed.
        elsewhere: Offsets of the fold in the other partitions, of :meth:`.Claim.offsets_in_other_partitions`.
        present: Number of partitions the source has now.

    Returns:
        The count; not above ``partition`` if that was added later. 0: the fold began before the count was noted, or as
        ``earliest``: whatever has no mark was added later. Where nobody can tell, as the broker keeps no metadata, the present one.
    """
    none_added = max(present, partition + 1)
    if None in elsewhere.values():
        return none_added
    counts = [int(mark.metadata) if mark.metadata.isdecimal() else 0 for mark in elsewhere.values() if mark is not None]
    return min(counts, default=none_added)
