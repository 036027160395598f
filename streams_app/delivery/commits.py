"""Commits to Kafka: all processors of a partition share one commit, and at most one commit is in flight.

Low watermarks are committed every few seconds, on revocation and at shutdown. If the outcome of a commit is unknown, the next one
repeats it; if the metadata matters, the member rejoins its group instead. A low watermark remains valid: within its generation, it
can be committed twice or late without harm.

Metadata does not remain valid: metadata that lists started work must not be overwritten by older metadata. A broker handles the
requests of a connection in order, so a commit can only be late if it is still in flight or its connection was cut. In a group whose
metadata matters, the member makes no further commit after an unanswered one, except the last commit of a claim, which starts no
work. Instead, the member rejoins its group, and the broker rejects the late commit because it names the previous member and
generation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.delivery.dependency_errors import DEPENDENCY_ERRORS
from streams_app.delivery.group_consumer import GroupConsumer, InDoubtError, Member, NotOwnerError, PartitionCommit
from streams_app.delivery.offset_metadata import OffsetAndMetadata, commit_of
from streams_app.delivery.partition import Partition
from streams_app.errors import text_of
from streams_app.reported_backoff import ReportedBackoff

logger = logging.getLogger(__name__)


class Commits:
    """Commits the offsets of partitions; those that were claimed under the same member id and generation share one request.

    Attributes:
        lock: Held during each commit. A claim also holds the lock while it reads the committed offset and commits that offset
            again. Otherwise, the claim could undo a commit made in between.
    """

    def __init__(self, group_consumer: GroupConsumer, clock: Clock, on_doubt: Callable[[InDoubtError], None] | None = None) -> None:
        """Create the commits of one member of a group.

        If a commit had no answer, ``on_doubt`` is called in place of the next one, and makes the member rejoin its group. None if a
        late commit is harmless, so that the member continues to commit.
        """
        self.lock = asyncio.Lock()
        self._group_consumer = group_consumer
        self._on_doubt = on_doubt
        self._in_doubt: Member | None = None
        # A timer requests the next commit, so the delays are not used.
        self._backoff = ReportedBackoff(first_seconds=0.0, longest_seconds=0.0, clock=clock)
        self._committing_now: list[Partition] = []

    async def commit_last(self, partitions: Collection[Partition]) -> None:
        """Commit the final offsets of released partitions.

        If Kafka or Redis does not answer, only log that; the next owner may then read some records again.
        """
        if not await self.commit_once(partitions, is_last=True):
            await asyncio.gather(
                *(served.processor.on_commit_rejected() for one in partitions for served in one.ranges.served.values())
            )

    async def commit_once(self, partitions: Collection[Partition], *, is_last: bool = False) -> bool:
        """Commit the low watermarks that have changed. An unavailable broker or Redis is logged, not raised.

        Args:
            is_last: Whether these partitions were just released. If False, a partition that is released while offsets are read is
                skipped, because it may already be claimed again.

        Returns:
            False if Kafka rejected the commit, or if this member must rejoin its group because an earlier commit had no answer.
            Else True, even if Kafka or Redis did not answer.
        """
        async with self.lock:
            try:
                await self._commit(partitions, is_last=is_last)
            except NotOwnerError as error:
                logger.info("commit rejected, a rebalance is in progress error=%s", error)
                return False
            except DEPENDENCY_ERRORS as error:
                if self._backoff.should_report:
                    logger.warning("commit failed, retrying error=%s", text_of(error))
                self._backoff.failed()
            else:
                # After a failed request, every position is sent again. So this is the end of the outage, even if nothing was sent.
                if partitions and self._backoff.succeeded():
                    logger.info("commits work again")
        return True

    async def _commit(self, partitions: Collection[Partition], *, is_last: bool) -> None:
        wanted: dict[Partition, PartitionCommit] = {}
        for partition in partitions:
            low = await partition.offsets.low(partition.ranges.served)
            if low is not None and low != partition.offsets.committed:
                wanted[partition] = low
        by_member: dict[tuple[int, str], list[Partition]] = {}
        for partition in wanted:
            if is_last or not partition.is_over:
                by_member.setdefault((partition.member.generation, partition.member.member_id), []).append(partition)
        # One request names one member: partitions claimed before and after a rejoin are committed separately.
        for together in by_member.values():
            _forget(together)
            await self.send({partition.tp: wanted[partition] for partition in together}, together[0].member, is_last=is_last)
            for partition in together:
                partition.offsets.committed = wanted[partition]

    async def commit_now(self, partition: Partition, name: str, position: OffsetAndMetadata) -> None:
        """Do what :meth:`.Claim.commit_now` promises.

        Calls that arrive while a commit is in flight are combined into one request for each member. The first commit of a new
        processor waits until the initial offsets of all new processors of the partition are known, see
        :class:`.FirstCommitBarrier`. A partition that is being released can still be committed, because its claim is valid until
        its processors have ended.

        Raises:
            NotOwnerError: Also if the member must rejoin its group because an earlier commit had no answer.
        """
        partition.offsets.raise_to({name: position})
        await partition.offsets.first_commit.announce(name)
        self._committing_now.append(partition)
        try:
            async with self.lock:
                if partition.is_ended:
                    raise NotOwnerError("the claim is over")
                member = partition.member
                committing = [one for one in self._committing_now if one.member == member and not one.is_ended]
                wanted = {one: commit_of(one.offsets.by_name) for one in committing}
                wanted = {one: position for one, position in wanted.items() if position != one.offsets.committed}
                if wanted:
                    _forget(wanted)
                    await self.send({one.tp: position for one, position in wanted.items()}, member)
                for one, committed in wanted.items():
                    one.offsets.committed = committed
        finally:
            self._committing_now.remove(partition)

    async def send(self, positions: Mapping[TP, PartitionCommit], member: Member, *, is_last: bool = False) -> None:
        """Send one commit request; the caller must hold :attr:`lock`.

        Args:
            is_last: Whether this is the last commit of a claim. Because it starts no work, it is sent even if an earlier commit of
                this member had no answer.

        Raises:
            NotOwnerError: Kafka rejected the commit. Or an earlier commit of this member had no answer: nothing was sent, and the
                member rejoins its group.
        """
        if self._on_doubt is not None and member == self._in_doubt and not is_last:
            self._on_doubt(InDoubtError("a commit had no answer, rejoining the group before any event begins"))
            raise NotOwnerError("a commit of this member has had no answer")
        try:
            await self._group_consumer.commit(positions, member)
        except NotOwnerError:
            raise
        except BaseException:  # Also on cancellation: the request may have been sent.
            self._in_doubt = member
            raise


def _forget(partitions: Iterable[Partition]) -> None:
    """Mark the committed offsets as unknown until a commit is answered, so that a failed commit is repeated."""
    for partition in partitions:
        partition.offsets.committed = None
