"""How marks are committed: those of a partition's processors together, one commit in flight, and no mark ever goes back.

Low watermarks are committed every few seconds, also in silence, on revocation and at the end. A commit whose outcome is unknown is
made again by the next one; a low watermark is true for ever, so a repeated or late one does no harm under its own generation.

A note is not: one that says what is begun must not be overwritten by an older one. A broker takes the requests of one connection in
order, so that only a commit whose connection was cut, or that is still on its way, can be late. Where notes matter nothing is
committed after such a one but what ends a claim, which begins nothing: the member joins its group anew, and the broker refuses the
late one, as it names a member and a generation that are gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import Committed, GroupConsumer, InDoubtError, Member, NotOwnerError
from streams_app.delivery.offset_metadata import commit_of
from streams_app.delivery.partition import Partition
from streams_app.delivery.processor import OffsetAndMetadata
from streams_app.delivery.retry import DEPENDENCY_ERRORS
from streams_app.errors import text_of

logger = logging.getLogger(__name__)


class Commits:
    """Commits marks of many partitions in one request.

    Attributes:
        lock: Held by whoever commits, and while a claim reads what is committed and commits it once more: a commit that
            slipped in between would be taken back.
    """

    def __init__(self, host: GroupConsumer, on_doubt: Callable[[InDoubtError], None] | None = None) -> None:
        """No commit is under way.

        Args:
            host: Commits.
            on_doubt: See :class:`streams_app.delivery.ownership.OwnershipConfig`.
        """
        self.lock = asyncio.Lock()
        self._host = host
        self._on_doubt = on_doubt
        self._in_doubt: Member | None = None
        self._is_failing = False
        self._told: list[Partition] = []

    async def commit_last(self, partitions: Collection[Partition]) -> None:
        """Commits what is left to say of partitions that were let go; where Kafka refuses that their processors are told."""
        if not await self.commit_once(partitions, is_last=True):
            await asyncio.gather(*(served.processor.lost() for one in partitions for served in one.ranges.served.values()))

    async def commit_once(self, partitions: Collection[Partition], *, is_last: bool = False) -> bool:
        """Commits the low watermark of each partition in which it has moved; never raises for a broker or a Redis that is away.

        Args:
            partitions: Claimed by this process.
            is_last: Whether these partitions have just been let go. Otherwise a partition that was let go while marks were read is
                left out: it may have been claimed again.

        Returns:
            False where Kafka has refused it.
        """
        async with self.lock:
            try:
                await self._commit(partitions, is_last=is_last)
            except NotOwnerError as error:
                logger.info("commit refused, a rebalance is under way error=%s", error)
                return False
            except DEPENDENCY_ERRORS as error:
                level = logging.DEBUG if self._is_failing else logging.WARNING
                logger.log(level, "commit not made, tried again until it is error=%s", text_of(error))
                self._is_failing = True
        return True

    async def _commit(self, partitions: Collection[Partition], *, is_last: bool) -> None:
        wanted: dict[Partition, Committed] = {}
        for partition in partitions:
            low = await partition.marks.low(partition.ranges.served)
            if low is not None and low != partition.marks.committed:
                wanted[partition] = low
        by_member: dict[tuple[int, str], list[Partition]] = {}
        for partition in wanted:
            if is_last or not partition.is_over:
                by_member.setdefault((partition.member.generation, partition.member.member_id), []).append(partition)
        # One request is made in the name of one claim: partitions claimed before and after a rejoin are committed apart.
        for together in by_member.values():
            _forget(together)
            await self.send({partition.tp: wanted[partition] for partition in together}, together[0].member, is_last=is_last)
            self._is_failing = False
            for partition in together:
                partition.marks.committed = wanted[partition]

    async def commit_now(self, partition: Partition, name: str, mark: OffsetAndMetadata) -> None:
        """See :meth:`streams_app.delivery.processor.Claim.commit_now`.

        Those who have come while another commit was in flight are committed together, in one request. What ends while a partition
        is let go is committed, too: its claim is this member's until its processors have ended, and nobody claims it here before.
        """
        partition.marks.note({name: mark})
        await partition.marks.beginning.told(name)
        self._told.append(partition)
        try:
            async with self.lock:
                if partition.is_ended:
                    raise NotOwnerError("the claim is over")
                member = partition.member
                told = [one for one in self._told if one.member == member and not one.is_ended]
                wanted = {one: commit_of(one.marks.marks) for one in told}
                wanted = {one: mark for one, mark in wanted.items() if mark != one.marks.committed}
                if wanted:
                    _forget(wanted)
                    await self.send({one.tp: mark for one, mark in wanted.items()}, member)
                for one, committed in wanted.items():
                    one.marks.committed = committed
        finally:
            self._told.remove(partition)

    async def send(self, marks: Mapping[TP, Committed], member: Member, *, is_last: bool = False) -> None:
        """Sends one request; with :attr:`lock` held.

        Args:
            marks: What is committed.
            member: Of the claim.
            is_last: Whether nothing begins after it in the name of this member.

        Raises:
            NotOwnerError: Kafka refused it; or a commit of this member has had no answer, and it has to join anew.
            KafkaError, TimeoutError: The outcome is unknown.
        """
        if self._on_doubt is not None and member == self._in_doubt and not is_last:
            self._on_doubt(InDoubtError("a commit has had no answer, joins the group anew before anything begins"))
            raise NotOwnerError("a commit of this member has had no answer")
        try:
            await self._host.commit(marks, member)
        except NotOwnerError:
            raise
        except BaseException:  # also where it was cancelled: the request may be on its way
            self._in_doubt = member
            raise


def _forget(partitions: Iterable[Partition]) -> None:
    """Until a commit is answered nobody knows what the broker holds: what was committed before may have to be committed again."""
    for partition in partitions:
        partition.marks.committed = None
