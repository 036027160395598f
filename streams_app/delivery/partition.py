"""A claimed partition: its processors, the ranges delivered to them, and the claims through which they reach it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from streams_app.delivery import fingerprints
from streams_app.delivery.batch import TP
from streams_app.delivery.claim import Claim, LogBounds
from streams_app.delivery.clocks import ReaderView, TrustedClock
from streams_app.delivery.fingerprints import Fingerprint, Incarnation
from streams_app.delivery.group_consumer import GroupConsumer, Member
from streams_app.delivery.offset_metadata import OffsetAndMetadata, offsets_in
from streams_app.delivery.partition_offsets import PartitionOffsets
from streams_app.delivery.ranges import Ranges
from streams_app.delivery.reconnection import Reconnection


@dataclass(frozen=True, slots=True)
class ResyncCause:
    """Why a partition is claimed again.

    Attributes:
        cause: One word, for metrics.
        why: The cause as text, for logs.
        script: Name of the script or step that detected it.
    """

    cause: str
    why: str
    script: str


class Owner(Protocol):
    """The owner of a claimed partition, which acts on its reports as the methods of the same names of :class:`.Claim` promise."""

    def resync(self, partition: Partition, cause: ResyncCause) -> None: ...

    def fatal(self, error: BaseException) -> None: ...

    def on_progress(self, partition: Partition) -> None: ...

    def went_back(self, partition: Partition, name: str, common: int, read_to: int) -> None:
        """Report that the broker lost records that a processor had read: offsets ``common`` to ``read_to`` - 1."""


class PartitionCommits(Protocol):
    """Commits of claimed partitions: :class:`.Commits`."""

    async def commit_now(self, partition: Partition, name: str, position: OffsetAndMetadata) -> None: ...


class Partition:
    """A partition that this process owns, from its claim to its release.

    Attributes:
        member: Generation and member id of the claim; every commit for the partition is made under them.
        resync_cause: Why the partition must be claimed again, if a processor reported that during the claim; else None.
        read: Fingerprints of records that were read before and since the claim.
        incarnation: Topic id and leader epoch when the log was last verified; None if the broker does not report them.
        is_paused: Whether its reader is paused because records wait for a processor, or until the log is verified.
        is_over: Whether it is being released: reports of its processors are ignored, except commits and fatal errors.
        is_ended: Whether its processors have ended; only the last commit remains.
    """

    def __init__(
        self, tp: TP, member: Member, group_consumer: GroupConsumer, owner: Owner, commits: PartitionCommits, clock: TrustedClock
    ) -> None:  # fmt: skip
        self.tp = tp
        self.member = member
        self.group_consumer = group_consumer
        self.owner = owner
        self.commits = commits
        self.clock = clock
        self.ranges = Ranges()
        self.offsets = PartitionOffsets()
        self.resync_cause: ResyncCause | None = None
        self.read: tuple[Fingerprint, ...] = ()
        self.incarnation: Incarnation | None = None
        self.reconnection = Reconnection(tp, self._compare_log, owner.fatal)
        self.is_paused = self.is_over = self.is_ended = False

    def __repr__(self) -> str:
        return f"<Partition {self.tp} generation={self.member.generation}>"

    def tick(self, now_ms: int) -> None:
        """No effect while the partition is being released."""
        if not self.is_over:
            for served in self.ranges.served.values():
                served.processor.tick(now_ms)

    async def resync_if_log_changed(self, now: Incarnation) -> None:
        """Claim the partition again if its log was replaced since the last check.

        If only the leader epoch has changed, the log is compared with the fingerprints of records that were read. If the broker
        does not answer, a KafkaError or TimeoutError is raised; try again later.
        """
        former = self.incarnation
        if former is not None and former.topic_id != now.topic_id:
            self.resync("log", "its topic was deleted and created again", "look")
        elif former != now:
            await self._compare_log()
            self.incarnation = now

    async def _compare_log(self) -> bool:
        """Return whether the log matches the fingerprints of records that were read; if not, claim the partition again."""
        is_same = await fingerprints.common_end(self.read, partial(self.group_consumer.checksum_at, self.tp)) is None
        if not is_same:
            self.resync("log", "its log went back", "look")
        return is_same

    async def end(self, seconds: float) -> None:
        """End all processors of the partition, with a grace period of ``seconds``; errors go to :meth:`.Owner.fatal`."""
        # First, so that reports of ending processors are ignored.
        self.is_over = True
        self.reconnection.end()
        ending = [served.processor.revoke(seconds) for served in self.ranges.served.values()]
        try:
            outcomes = await asyncio.gather(*ending, return_exceptions=True)
        finally:
            self.is_ended = True
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                self.owner.fatal(outcome)

    def shorten_deadline(self, seconds: float) -> None:
        for served in self.ranges.served.values():
            served.processor.shorten_deadline(seconds)

    def resync(self, cause: str, why: str, script: str) -> None:
        """No effect while the partition is being released."""
        if not self.is_over:
            self.owner.resync(self, ResyncCause(cause, why or cause, script))

    async def log_bounds_now(self) -> LogBounds:
        asked_ms = self.clock.now_ms()
        return LogBounds(*await self.group_consumer.log_range(self.tp), asked_ms)


@dataclass(frozen=True, slots=True, eq=False)
class PartitionClaim(Claim):
    """The claim of one processor to a :class:`Partition`."""

    _partition: Partition

    def resync(self, cause: str, why: str = "", script: str = "") -> None:
        self._partition.resync(cause, why, script)

    def fatal(self, error: BaseException) -> None:
        self._partition.owner.fatal(error)

    def on_progress(self) -> None:
        if not self._partition.is_over:
            self._partition.owner.on_progress(self._partition)

    async def commit_now(self, position: OffsetAndMetadata) -> None:
        await self._partition.commits.commit_now(self._partition, self.name, position)

    async def offsets_in_other_partitions(self) -> Mapping[int, OffsetAndMetadata | None]:
        found: dict[int, OffsetAndMetadata | None] = {}
        for number, committed in (await self._partition.group_consumer.commits(self.tp.topic)).items():
            in_commit = offsets_in(committed)
            if number != self.tp.partition and (in_commit is None or self.name in in_commit):
                found[number] = None if in_commit is None else in_commit[self.name]
        return found

    async def log_bounds_now(self) -> LogBounds:
        return await self._partition.log_bounds_now()

    async def common_end(self, read: Sequence[Fingerprint]) -> int | None:
        partition = self._partition
        common = await fingerprints.common_end(read, partial(partition.group_consumer.checksum_at, self.tp))
        if common is None:
            partition.read = max(partition.read, tuple(read), key=lambda one: one[-1].offset if one else -1)
        return common

    def went_back(self, offset: int, read_to: int) -> None:
        self._partition.offsets.went_back(self.name, offset)
        self._partition.owner.went_back(self._partition, self.name, offset, read_to)

    async def broker_keeps_metadata(self) -> bool:
        committed = await self._partition.group_consumer.committed(self.tp)
        return committed is not None and committed.metadata != ""

    async def offset_at(self, time_ms: int) -> int:
        return await self._partition.group_consumer.offset_at(self.tp, time_ms)

    def reader_view(self) -> ReaderView:
        return self._partition.group_consumer.reader_view(self.tp)[0]
