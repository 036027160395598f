"""A member of a consumer group on an aiokafka consumer without Faust, for all processors except folds.

Faust's consumer delivers all topics in one loop, so a processor that waits for an unavailable store would stop folding. This
consumer runs on the loop of the worker. Neither a rebalance of its group nor recreating its client affects the folds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Final, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import NotOwnerError
from streams_app.delivery.ownership import Ownership
from streams_app.delivery.tasks import cancel_all
from streams_app.health.outage_reporter import OutageReporter
from streams_app.kafka.client import client_options
from streams_app.kafka.fetching import PREFETCH_BACKOFF, is_behind, notify_waiters, seek_and_count, take_fetched
from streams_app.kafka.member_requests import unread_ranges_of
from streams_app.kafka.patches.consumer_end import end
from streams_app.kafka.patches.fetch_times import watch
from streams_app.kafka.requests import KafkaRequests, in_time
from streams_app.settings import Settings

logger = logging.getLogger(__name__)

T = TypeVar("T")

POLL_SECONDS: Final = 0.5
"""Maximum time between two polls, even while all partitions are paused; a consumer that does not poll is removed from its group."""

MAX_RECORDS: Final = 5_000
"""Maximum number of records taken from the client at once, in all partitions; the rest stays unparsed."""

FETCH_MAX_WAIT_MS, BUSY_FETCH_MAX_WAIT_MS = 500, 50
"""Longest wait of a fetch, in ms: the first while no partition is behind, the second while one is.

Each broker has one fetch in flight: while it waits at the end of a partition, a resumed partition that is behind receives nothing.
"""

REBALANCE_MS: Final = 10_000
POLL_INTERVAL_MS: Final = 300_000

METADATA_MAX_AGE_MS: Final = 5_000
"""Time, in ms, within which a member notices that a topic was created, created again, or got more partitions."""

RELEASE_SECONDS: Final = 3.0
LEAVE_SECONDS: Final = 1.5
END_SECONDS: Final = 3.0
NO_GENERATION: Final = -1


class GroupMember(KafkaRequests, ConsumerRebalanceListener):
    """A :class:`streams_app.delivery.group_consumer.GroupConsumer` on an aiokafka consumer, which is recreated after a failure."""

    def __init__(
        self,
        settings: Settings,
        group: str,
        topics: Collection[str],
        *,
        release_seconds: float = RELEASE_SECONDS,
        last_release_seconds: float | None = None,
        fetch_wait_ms: int = FETCH_MAX_WAIT_MS,
    ) -> None:
        """Create a member, without connecting.

        Args:
            group: Short name of the group, whose full name is ``<app_id>.<group>``.
            release_seconds: Timeout of the release of partitions before the client is recreated. The rebalance timeout is at least
                twice as long.
            last_release_seconds: Timeout of the release at the shutdown of the worker; None for ``release_seconds``.
            fetch_wait_ms: Longest wait of a fetch while no partition is behind. Each reply contains the end offsets, so this is
                also their approximate maximum age.
        """
        self._fetch_wait_ms = fetch_wait_ms
        self._last_release_seconds = release_seconds if last_release_seconds is None else last_release_seconds
        self._release_seconds = release_seconds
        self._settings = settings
        self.group = group
        self._topics = list(topics)
        self._consumer: AIOKafkaConsumer | None = None
        self._ownership: Ownership | None = None
        self._seek_numbers: dict[TP, int] = defaultdict(int)
        self.outage = OutageReporter(f"consumer of group {settings.app_id}.{group}")
        self._failed: asyncio.Future[None] | None = None

    # ---- membership

    async def run(self, ownership: Ownership, stop: asyncio.Event) -> None:
        """Run as a member of the group until the worker stops; then commit and leave the group. Errors are retried, not raised."""
        self._ownership = ownership
        while not stop.is_set():
            wait_ms = 0
            try:
                await self._join()
                await self._serve(ownership, stop)
            except (Exception, asyncio.CancelledError) as error:  # any error, because the worker must continue to fold
                if is_cancelled():
                    raise
                wait_ms = self.outage.failed(error)
                logger.debug("consumer of group %s is recreated", self.group, exc_info=error)
            finally:
                await self._leave(ownership, self._last_release_seconds if stop.is_set() else self._release_seconds)
            await wait(stop, wait_ms / 1000)

    def fail(self, error: BaseException) -> None:
        """End the current client because of an error; it is recreated after a growing backoff. No effect while no client runs."""
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def _join(self) -> None:
        kafka = self._settings.kafka
        session_ms = kafka.session_timeout_ms
        self._consumer = AIOKafkaConsumer(
            **client_options(kafka),
            client_id=f"{self._settings.app_id}-{self.group}",
            group_id=f"{self._settings.app_id}.{self.group}",
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=self._fetch_wait_ms,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=min(3_000, max(300, session_ms // 5)),
            rebalance_timeout_ms=max(REBALANCE_MS, round(2_000 * self._release_seconds)),
            # The member does not poll while it releases its partitions.
            max_poll_interval_ms=max(POLL_INTERVAL_MS, round(2_000 * max(self._release_seconds, self._last_release_seconds))),
        )
        self._consumer.subscribe(self._topics, listener=self)
        await self._consumer.start()

    async def _serve(self, ownership: Ownership, stop: asyncio.Event) -> None:
        worker = self._settings.worker
        self._failed = asyncio.get_running_loop().create_future()
        tasks = {
            asyncio.create_task(self._read(ownership), name=f"{self.group} read"),
            asyncio.create_task(_every(worker.tick_ms / 1000, _soon(ownership.tick_once)), name=f"{self.group} tick"),
            asyncio.create_task(_every(worker.commit_every_ms / 1000, ownership.commit_once), name=f"{self.group} commit"),
            asyncio.create_task(_stopped(stop), name=f"{self.group} stop"),
        }
        try:
            done, _ = await asyncio.wait({*tasks, self._failed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_all(tasks)
            self._failed.cancel()
        for one in done:
            one.result()

    async def _leave(self, ownership: Ownership, seconds: float) -> None:
        """Release all partitions, commit, and leave the group; errors are logged, not raised."""
        consumer = self._consumer
        await attempt(ownership.stop(seconds), seconds, "release")
        self._consumer = None
        if consumer is not None:
            await attempt(end(consumer, LEAVE_SECONDS), END_SECONDS, "end")

    # ---- reading

    async def _read(self, ownership: Ownership) -> None:
        while True:
            await self._fetch_once(ownership)
            # Only once all partitions are claimed: an error that ends every claim would otherwise count as many short outages.
            if ownership.partitions.keys() >= ownership.assignment:
                self.outage.succeeded()

    async def _fetch_once(self, ownership: Ownership) -> None:
        """Deliver fetched records; if there are none, wait for them for at most :data:`POLL_SECONDS`."""
        consumer = self._connected()
        consumer._coordinator.check_errors()
        fetcher = consumer._fetcher
        watch(fetcher)
        fetcher._prefetch_backoff = PREFETCH_BACKOFF
        with fetcher._subscriptions.fetch_context():
            if fetcher._subscriptions.reassignment_in_progress:
                await fetcher._subscriptions.wait_for_assignment()
            active = {TP(*tp) for tp in consumer.assignment() - consumer.paused()}
            batches = take_fetched(fetcher, active, self._seek_numbers, MAX_RECORDS)
            for batch in batches.values():
                ownership.deliver(batch)
            if batches:
                fetcher._fetch_max_wait_ms = BUSY_FETCH_MAX_WAIT_MS if is_behind(batches.values()) else self._fetch_wait_ms
                # Fetched records may always be available: give other tasks of this loop a turn.
                await asyncio.sleep(0)
                return
            waiter = fetcher._create_fetch_waiter()
            done, _ = await asyncio.wait([waiter], timeout=POLL_SECONDS)
            if done:
                waiter.result()
            else:
                waiter.cancel()

    # ---- rebalance

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        if self._ownership is not None:
            await self._ownership.revoked([TP(*tp) for tp in revoked])

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self.pause([TP(*tp) for tp in assigned])
        if self._ownership is not None:
            self._ownership.assigned(self.generation)

    # ---- requests of the ownership

    @property
    def generation(self) -> int:
        """Generation of the group that the client last joined; -1 if there is no client, or while the client is starting."""
        coordinator = self._consumer._coordinator if self._consumer is not None else None
        return NO_GENERATION if coordinator is None else int(coordinator.generation)

    @property
    def client(self) -> AIOKafkaConsumer | None:
        return self._consumer

    def assignment(self) -> set[TP]:
        consumer = self._consumer
        return {TP(*tp) for tp in consumer.assignment()} if consumer is not None else set()

    async def seek(self, tp: TP, offset: int) -> int:
        return seek_and_count(self._connected(), self._seek_numbers, tp, offset)

    def pause(self, tps: Collection[TP]) -> None:
        """Pause fetching of partitions; those that are not assigned are ignored."""
        consumer = self._consumer
        if consumer is not None:
            consumer.pause(*_assigned(consumer, tps))

    def resume(self, tps: Collection[TP]) -> None:
        """Resume fetching of partitions immediately; those that are not assigned are ignored."""
        consumer = self._consumer
        if consumer is not None:
            consumer.resume(*_assigned(consumer, tps))
            notify_waiters(consumer)

    async def unread_ranges(self, positions: Mapping[TP, int]) -> dict[TP, tuple[int, int]]:
        """Return the position and the high watermark of each partition, see :func:`.unread_ranges_of`.

        Raises:
            NotOwnerError: The member is not connected.
        """
        return await self._asked(lambda consumer: unread_ranges_of(consumer, positions))

    def _connected(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise NotOwnerError("there is no client now")
        return self._consumer

    async def _asked(self, question: Callable[[AIOKafkaConsumer], Coroutine[Any, Any, T]]) -> T:
        return await in_time(question(self._connected()))


def _assigned(consumer: AIOKafkaConsumer, tps: Iterable[TP]) -> list[TopicPartition]:
    assignment = consumer.assignment()
    return [tp for tp in (TopicPartition(*tp) for tp in tps) if tp in assignment]


def _soon(step: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def stepping() -> None:
        step()

    return stepping


async def _every(seconds: float, step: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        await step()


async def _stopped(stop: asyncio.Event) -> None:
    await stop.wait()


async def wait(stop: asyncio.Event, seconds: float) -> None:
    """Wait for ``seconds``, or until ``stop`` is set."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return


async def attempt(call: Coroutine[Any, Any, Any], seconds: float, what: str) -> None:
    """Await ``call`` for at most ``seconds``. If it fails or takes longer, log that at debug level, and return normally.

    A cancellation within ``call`` also counts as a failure, because closing a client cancels tasks that other code awaits. A
    cancellation of the caller is raised.
    """
    try:
        await asyncio.wait_for(call, seconds)
    except (Exception, asyncio.CancelledError) as error:  # any error: the caller's further steps must still run
        if is_cancelled():
            raise
        logger.debug("%s of a consumer that is given up failed", what, exc_info=error)


def is_cancelled() -> bool:
    """Return whether the current task itself is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
