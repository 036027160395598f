"""Commits to Kafka: the offsets of a partition's processors together, one commit in flight, and no offset goes back.

Low watermarks are committed every few seconds, on revocation and at shutdown. If the outcome of a commit is unknown, the next one
repeats it. A low watermark stays true, so a repeated or late commit of one does no harm under its own generation.

Metadata does not stay true: metadata that names what has started must not be overwritten by an older one. A broker handles the
requests of a connection in order, so a commit can only be late if its connection was cut or it is still on its way. If metadata
matters, no commit follows such a commit in the name of the same member, except the last one of a claim, which starts nothing. The
member rejoins its group, and the broker rejects the late commit because it names a former member and generation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from streams_app.delivery.batch import TP
from streams_app.delivery.dependency_errors import DEPENDENCY_ERRORS
from streams_app.delivery.group_consumer import Committed, GroupConsumer, InDoubtError, Member, NotOwnerError
from streams_app.delivery.offset_metadata import commit_of
from streams_app.delivery.partition import Partition
from streams_app.delivery.processor import OffsetAndMetadata
from streams_app.errors import text_of

logger = logging.getLogger(__name__)


class Commits:
    """Commits the offsets of many partitions in one request.

    Attributes:
        lock: Held during each commit, and while a claim reads the committed offset and commits it again: that would undo a
            commit made in between.
    """

    def __init__(self, host: GroupConsumer, on_doubt: Callable[[InDoubtError], None] | None = None) -> None:
        """Create it without a commit in flight.

        Args:
            host: Commits.
            on_doubt: See :class:`streams_app.delivery.ownership.OwnershipConfig`.
        """
        self.lock = asyncio.Lock()
        self._host = host
        self._on_doubt = on_doubt
        self._in_doubt: Member | None = None
        self._is_failing = False
        self._committing_now: list[Partition] = []

    async def commit_last(self, partitions: Collection[Partition]) -> None:
        """Commit the final offsets of released partitions; if Kafka rejects them, notify the processors."""
        if not await self.commit_once(partitions, is_last=True):
            await asyncio.gather(
                *(served.processor.on_commit_rejected() for one in partitions for served in one.ranges.served.values())
            )

    async def commit_once(self, partitions: Collection[Partition], *, is_last: bool = False) -> bool:
        """Commit the low watermarks that have moved. An unavailable broker or Redis is logged, not raised.

        Args:
            partitions: Claimed by this process.
            is_last: Whether these partitions were just released. Otherwise a partition that was released while offsets were read is
                left out: it may have been claimed again.

        Returns:
            False if Kafka rejected it.
        """
        async with self.lock:
            try:
                await self._commit(partitions, is_last=is_last)
            except NotOwnerError as error:
                logger.info("commit rejected, a rebalance is in progress error=%s", error)
                return False
            except DEPENDENCY_ERRORS as error:
                level = logging.DEBUG if self._is_failing else logging.WARNING
                logger.log(level, "commit failed, retrying error=%s", text_of(error))
                self._is_failing = True
        return True

    async def _commit(self, partitions: Collection[Partition], *, is_last: bool) -> None:
        wanted: dict[Partition, Committed] = {}
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
            self._is_failing = False
            for partition in together:
                partition.offsets.committed = wanted[partition]

    async def commit_now(self, partition: Partition, name: str, position: OffsetAndMetadata) -> None:
        """Commit the offset of one processor together with those of the others of its partition; see :meth:`.Claim.commit_now`.

        Calls that arrive while another commit is in flight share one request. A partition that is being released is committed, too:
        its claim is valid until its processors have ended.
        """
        partition.offsets.raise_to({name: position})
        await partition.offsets.beginning.announce(name)
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

    async def send(self, positions: Mapping[TP, Committed], member: Member, *, is_last: bool = False) -> None:
        """Send one request; the caller holds :attr:`lock`.

        Args:
            positions: Offsets and metadata to commit.
            member: Member of the claim.
            is_last: Whether nothing starts after it in the name of this member.

        Raises:
            NotOwnerError: Kafka rejected it, or a commit of this member had no answer, so that it must rejoin.
            KafkaError, TimeoutError: The outcome is unknown.
        """
        if self._on_doubt is not None and member == self._in_doubt and not is_last:
            self._on_doubt(InDoubtError("a commit has had no answer, joins the group anew before anything begins"))
            raise NotOwnerError("a commit of this member has had no answer")
        try:
            await self._host.commit(positions, member)
        except NotOwnerError:
            raise
        except BaseException:  # also if cancelled: the request may be on its way
            self._in_doubt = member
            raise


def _forget(partitions: Iterable[Partition]) -> None:
    """Forget the committed offsets until the commit is answered: they may have to be committed again."""
    for partition in partitions:
        partition.offsets.committed = None
