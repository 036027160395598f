"""Ownership of the partitions of a consumer group: claims, resyncs, revocations, and back-pressure on fetching.

Claims (see :mod:`streams_app.delivery.claimer`) run in the background, each with a deadline, while the partition stays paused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.claim import ImpossibleClaimError
from streams_app.delivery.claim_retry import MANY, ClaimRetry, ReclaimBackoff
from streams_app.delivery.claimer import Claimer
from streams_app.delivery.clocks import ReaderView, TrustedClock
from streams_app.delivery.commits import Commits
from streams_app.delivery.dependency_errors import DEPENDENCY_ERRORS
from streams_app.delivery.fingerprints import with_last
from streams_app.delivery.group_consumer import GroupConsumer, InDoubtError, NotOwnerError
from streams_app.delivery.partition import Partition, ResyncCause
from streams_app.delivery.processor import Processors
from streams_app.delivery.ranges import RESET, RESYNC_CAUSES
from streams_app.delivery.release import PartitionReleases
from streams_app.delivery.scripts import FencedError
from streams_app.errors import ConfigurationError, NewerFormatError, text_of
from streams_app.health.progress import UNCLAIMED, Progress
from streams_app.health.status import Status

logger = logging.getLogger(__name__)

CLAIM_SECONDS: Final = 30.0
"""Timeout of one attempt to claim a partition; the next attempt follows after a backoff."""

LAST_COMMIT_SECONDS: Final = 2.0
"""Part of the timeout of a revocation that is reserved for the last commit."""

CHECK_LOGS_MS: Final = 2_000
"""Minimum interval between two checks whether a log was replaced by another one, which a client would read without an error."""


class Ownership:
    """Claims and releases the partitions that one consumer group assigns to this process."""

    def __init__(self, group_consumer: GroupConsumer, processors: Processors, config: OwnershipConfig) -> None:
        self.partitions: dict[TP, Partition] = {}
        self.assignment: set[TP] = set()
        self._group_consumer = group_consumer
        self._processors = processors
        self._config = config
        self.commits = Commits(group_consumer, config.clock, config.on_doubt)
        self._claimer = Claimer(group_consumer, processors, config.clock, self.commits)
        self._claims: dict[TP, asyncio.Task[None]] = {}
        self._releases = PartitionReleases(self.commits)
        self._is_stopping = False
        self._reclaim_backoff = ReclaimBackoff(config.clock)
        self._ticked: set[Partition] = set()
        self._left_to_newer: set[TP] = set()
        self._logs_checked_ms = config.clock.monotonic_ms()

    # ---- assignment

    def assigned(self, generation: int) -> None:
        """Start to claim all partitions that the group has assigned to this process in a generation, in the background.

        Partitions that stay assigned are claimed again. During :meth:`stop`, no claim is started.
        """
        self._left_to_newer.clear()
        self.assignment = {tp for tp in self._group_consumer.assignment() if tp.topic in self._processors.topics}
        self._config.on_assigned(self.assignment)
        if self._is_stopping:
            return  # A claim would start work and interrupt it at once.
        # Partitions that stay assigned are also claimed again, because Kafka rejects commits under the previous generation.
        for tp in list(self.partitions):
            self._release_partition(tp, self._config.reclaim_seconds)
        self._config.status.clear(self._config.about)
        for tp in self.assignment:
            self._config.status.set_not_ready(self._config.about, f"claiming {len(self.assignment)} partitions")
            self._claim_soon(tp, generation)

    async def revoked(self, tps: Iterable[TP], seconds: float | None = None) -> None:
        """Release partitions and commit their offsets.

        Args:
            seconds: Timeout, including the last commit; None for ``release_seconds`` of the configuration. After it, processors
                continue to end in the background, and the last commit is omitted.
        """
        seconds = self._config.release_seconds if seconds is None else seconds
        given = list(tps)
        claimed = [self.partitions[tp] for tp in given if tp in self.partitions]
        for tp in given:
            # A partition may already be releasing: its running work gets the same deadline, and is also awaited.
            self._releases.shorten_deadline(tp, seconds - LAST_COMMIT_SECONDS)
            self._release_partition(tp, seconds - LAST_COMMIT_SECONDS, is_handed_over=True)
        await self._releases.release(given, claimed, seconds)

    async def stop(self, seconds: float | None = None) -> None:
        """Release all partitions and commit their offsets, see :meth:`revoked`. Meanwhile, no partition is claimed."""
        self._is_stopping = True
        try:
            await self.revoked({*self.partitions, *self._claims, *self._releases.tps}, seconds)
        finally:
            self._is_stopping = False

    def _release_partition(self, tp: TP, seconds: float = 0.0, *, is_handed_over: bool = False) -> None:
        """Cancel the running claim of a partition. If the partition is claimed, start its release."""
        claim = self._claims.pop(tp, None)
        if claim is not None and claim is not asyncio.current_task():
            claim.cancel()
        if (partition := self.partitions.pop(tp, None)) is not None:
            self._releases.begin(partition, seconds, is_handed_over=is_handed_over)

    # ---- claim

    def _claim_soon(self, tp: TP, generation: int, *, delay_seconds: float = 0.0, was_reset: bool = False) -> None:
        self._release_partition(tp, self._config.reclaim_seconds)
        work = self._claim_with_retry(tp, generation, delay_seconds, was_reset=was_reset)
        task = self._claims[tp] = asyncio.create_task(work, name=f"claim {tp}")
        task.add_done_callback(self._claim_ended)

    def _claim_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._config.on_fatal(error)

    async def _claim_with_retry(self, tp: TP, generation: int, delay_seconds: float, *, was_reset: bool) -> None:
        retry = ClaimRetry(self._config.clock, self._config.session_ms)
        wait_seconds: float | None = delay_seconds
        while wait_seconds is not None:
            await asyncio.sleep(wait_seconds)
            if release := self._releases.of(tp):
                await asyncio.wait({release})
            wait_seconds = await self._claim_once(tp, generation, retry, was_reset=was_reset)

    async def _claim_once(self, tp: TP, generation: int, retry: ClaimRetry, *, was_reset: bool) -> float | None:
        """Make one attempt to claim a partition.

        Return the seconds until the next attempt; None if the partition is claimed, or no longer assigned in this generation.
        """
        if generation != self._group_consumer.generation or tp not in self._group_consumer.assignment():
            self._claims.pop(tp, None)
            return None
        try:
            async with asyncio.timeout(CLAIM_SECONDS) as limit:
                partition = await self._claimer.claim_once(tp, generation, self, was_reset=was_reset)
        except ImpossibleClaimError as error:
            raise ConfigurationError([f"{error}: {error.advice}"]) from error
        except (NotOwnerError, FencedError, NewerFormatError, *DEPENDENCY_ERRORS) as fault:
            is_over = isinstance(fault, TimeoutError) and limit.expired()
            failure = TimeoutError(f"no end within {CLAIM_SECONDS:g} s") if is_over else fault
            self._report_failed_claim(tp, failure)
            return retry.failed(tp, failure)
        # No await follows, so that a revocation sees either the claim or the claimed partition.
        self._hold(partition)
        return None

    def _report_failed_claim(self, tp: TP, failure: Exception) -> None:
        """Report why the worker is not ready.

        If a newer version has written the state of a partition or its commit, this process continues with its other partitions. It
        does not end: a supervisor would start the same version again, and each start is a rebalance of the whole group.
        """
        self._left_to_newer.discard(tp)
        if isinstance(failure, NewerFormatError):
            self._left_to_newer.add(tp)
            what = f"cannot claim {tp}" if failure.is_reset else f"{tp} is left to workers of a newer version"
            self._config.status.set_not_ready(self._config.about, f"{what}: {failure}")
        elif isinstance(failure, DEPENDENCY_ERRORS):
            self._config.status.set_not_ready(self._config.about, f"cannot claim {tp}: {text_of(failure)}")

    def _hold(self, partition: Partition) -> None:
        self._left_to_newer.discard(partition.tp)
        self._claims.pop(partition.tp, None)
        if not self._claims:
            self._config.status.clear(self._config.about)
        self.partitions[partition.tp] = partition
        if partition.resync_cause is None:
            self._group_consumer.resume({partition.tp})
        else:
            self.resync(partition, partition.resync_cause)

    # ---- reports of partitions

    def resync(self, partition: Partition, cause: ResyncCause) -> None:
        """If a claim of the partition is still running, only store the cause; the partition is claimed again after that claim."""
        if self.partitions.get(partition.tp) is not partition:
            partition.resync_cause = partition.resync_cause or cause
            return
        tp = partition.tp
        logger.warning(
            "claiming again: %s source=%s script=%s cause=%s",
            cause.why, tp, cause.script, cause.cause,
        )  # fmt: skip
        for name in partition.ranges.served:
            self._config.on_resync(name, cause.cause)
        self._group_consumer.pause({tp})
        delay_seconds, times = self._reclaim_backoff.reclaimed(tp, partition.ranges.applied)
        if times >= MANY:
            about = f"{tp} is claimed repeatedly ({cause.why}), see the log"
            self._config.status.set_not_ready(self._config.about, about)
        self._claim_soon(tp, partition.member.generation, delay_seconds=delay_seconds, was_reset=cause.cause == RESET)

    def fatal(self, error: BaseException) -> None:
        self._config.on_fatal(error)

    def on_progress(self, partition: Partition) -> None:
        partition.ranges.record_applied(self._config.clock.monotonic_ms())
        self._apply_back_pressure(partition)

    def went_back(self, partition: Partition, name: str, common: int, read_to: int) -> None:
        logger.error(
            "the log went back: the broker has lost events that were read, as after a restore from an older copy or an unclean "
            "election; reading again from %d name=%s source=%s offsets=%d-%d",
            common, name, partition.tp, common, read_to - 1,
        )  # fmt: skip
        self._config.on_went_back(name, max(0, read_to - common))

    # ---- ranges

    def deliver(self, batch: Batch) -> None:
        """Deliver a fetched range to its partition; after a gap, claim the partition again.

        After a reconnection to the broker, buffer the range until the log is verified, see :mod:`.reconnection`. If the partition
        is not claimed, drop the range; it is fetched again after the claim.
        """
        partition = self.partitions.get(batch.tp)
        if partition is None:
            return
        if partition.reconnection.buffer(batch, self._deliver):
            self._apply_back_pressure(partition)
        else:
            self._deliver(batch)

    def _deliver(self, batch: Batch) -> None:
        partition = self.partitions.get(batch.tp)
        if partition is None:
            return
        cause = partition.ranges.deliver(batch, self._config.clock.monotonic_ms())
        if cause is not None:
            self._resync_reader(partition, cause)
        else:
            if partition.ranges.position == batch.end:
                partition.read = with_last(partition.read, batch.records)
            self._apply_back_pressure(partition)

    def _apply_back_pressure(self, partition: Partition) -> None:
        is_full = partition.ranges.in_flight > 0 or partition.reconnection.is_waiting
        if is_full == partition.is_paused or self.partitions.get(partition.tp) is not partition:
            return
        partition.is_paused = is_full
        if is_full:
            self._group_consumer.pause({partition.tp})
        else:
            self._group_consumer.resume({partition.tp})

    def _resync_reader(self, partition: Partition, cause: str) -> None:
        self.resync(partition, ResyncCause(cause, RESYNC_CAUSES[cause], "deliver"))

    def in_flight(self) -> int:
        """Return the number of records that are delivered to processors but not applied, without those of slow partitions.

        A slow partition must not keep other partitions from reading.
        """
        now_ms = self._config.clock.monotonic_ms()
        claimed = (partition.ranges for partition in self.partitions.values())
        return sum(ranges.in_flight for ranges in claimed if not ranges.is_slow(now_ms))

    def positions(self) -> dict[TP, int]:
        """Return for each assigned partition the approximate offset below which all records are applied; -1 while not claimed.

        Safe to call from any thread.
        """
        claimed = dict(self.partitions)
        assigned = {tp for tp in self._group_consumer.assignment() if tp.topic in self._processors.topics}
        return {tp: claimed[tp].ranges.done if tp in claimed else UNCLAIMED for tp in assigned}

    def progress(self, ends: Mapping[TP, int], monotonic_ms: int) -> dict[Hashable, Progress]:
        """Return the progress of each partition, and of the other work of each processor (see :meth:`.Processor.progress`).

        The key is the partition; for other work, the name of the processor and the partition. Partitions of a topic that is paused
        for a known reason are left out, like those that wait for a worker of a newer version, and so is paused work. Safe to call
        from any thread.

        Args:
            ends: End offsets of partitions. For a partition that is missing here, the end offset in its last fetch reply is used.
        """
        found: dict[Hashable, Progress] = {}
        for tp, position in self.positions().items():
            is_left = position == UNCLAIMED and tp in self._left_to_newer
            if not is_left and not self._processors.is_paused(tp.topic):
                why = f"{tp} has more to read and stands still"
                end = ends[tp] if tp in ends else self.read_end(tp) or 0
                found[tp] = Progress(position, end, f"source={tp}", why)
        for tp, partition in dict(self.partitions).items():
            for name, served in partition.ranges.served.items():
                if progress := served.processor.progress(monotonic_ms):
                    found[name, tp] = progress
        return found

    def reader_views(self) -> dict[TP, ReaderView]:
        """Safe to call from any thread."""
        return {tp: self._group_consumer.reader_view(tp)[0] for tp in self.positions()}

    def read_end(self, tp: TP) -> int | None:
        """Return the last stable offset in a partition's last fetch reply; None before any reply. Safe to call from any thread."""
        return self._group_consumer.reader_view(tp)[0].stable_offset

    def backlog(self) -> int:
        """Return the approximate number of records that claimed partitions have yet to apply. Safe to call from any thread."""
        ends = ((self.read_end(tp) or 0, position) for tp, position in self.positions().items() if position != UNCLAIMED)
        return sum(max(0, end - position) for end, position in ends)

    # ---- every tick

    def tick_once(self) -> None:
        """Call :meth:`.Processor.tick` of all processors, and claim again each partition whose reader is at a wrong position.

        The calls are spread evenly over the time until the next tick: if all timers ran at once, processors would wait for each
        other. Processors of a partition that was claimed since the last tick are also called now, so that their first call is not
        delayed.
        """
        now_ms = self._config.clock.monotonic_ms()
        loop, tick_seconds = asyncio.get_running_loop(), self._config.tick_seconds
        partitions = list(self.partitions.values())
        ticked, self._ticked = self._ticked, set(partitions)
        for number, partition in enumerate(partitions):
            if partition not in ticked:
                self._tick(partition)
            loop.call_later(tick_seconds * number / len(partitions), self._tick, partition)
            cause = partition.ranges.check(self._group_consumer.reader_view(partition.tp)[1], now_ms)
            if cause is not None:
                self._resync_reader(partition, cause)

    def _tick(self, partition: Partition) -> None:
        partition.tick(self._config.clock.now_ms())

    async def commit_once(self) -> None:
        """Commit the low watermarks of all claimed partitions; every two seconds, check before that whether a log was replaced."""
        if self._config.clock.monotonic_ms() - self._logs_checked_ms >= CHECK_LOGS_MS:
            self._logs_checked_ms = self._config.clock.monotonic_ms()
            await self._check_logs()
        await self.commits.commit_once(list(self.partitions.values()))

    async def _check_logs(self) -> None:
        partitions = list(self.partitions.values())
        try:
            for topic in sorted({partition.tp.topic for partition in partitions}):
                found = await self._group_consumer.incarnations(topic)
                for partition in partitions:
                    if partition.tp.topic == topic and partition.tp.partition in found:
                        await partition.resync_if_log_changed(found[partition.tp.partition])
        except (NotOwnerError, *DEPENDENCY_ERRORS) as error:
            logger.debug("the logs could not be checked, trying again error=%s", text_of(error))


@dataclass(frozen=True, slots=True)
class OwnershipConfig:
    """Settings and callbacks for the ownership of one consumer group.

    Attributes:
        on_fatal: Called with an error after which the member cannot continue; ends the process, or recreates the client.
        on_resync: Called for each processor of a partition that is claimed again, with the name of the processor and the cause.
        release_seconds: Timeout of a revocation, including its last commit. The group waits for this member up to the rebalance
            timeout, then removes the member.
        reclaim_seconds: Grace period for running work of a partition that this process claims again; 0 for none.
        on_doubt: Called if a commit had no answer; makes this member leave its group and join as a new one. None if a late commit
            is harmless.
        on_went_back: Called with the name of a processor and the number of records that the broker lost after the processor had
            read them.
        on_assigned: Called after each rebalance with the partitions that are assigned to this process.
        about: Key under which the status stores why this group is not ready.
    """

    clock: TrustedClock
    status: Status
    on_fatal: Callable[[BaseException], None]
    on_resync: Callable[[str, str], None]
    session_ms: int
    tick_seconds: float
    release_seconds: float = 4.0
    reclaim_seconds: float = 0.0
    on_doubt: Callable[[InDoubtError], None] | None = None
    on_went_back: Callable[[str, int], None] = lambda name, events: None
    on_assigned: Callable[[Collection[TP]], None] = lambda tps: None
    about: str = "claim"
