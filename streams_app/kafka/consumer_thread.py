"""The thread in which Faust's aiokafka consumer runs. A fetch in it returns one batch, with its range, for each partition."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import aiokafka
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import ConsumerStoppedError, KafkaConnectionError
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread

from streams_app.delivery.batch import TP, Batch
from streams_app.kafka.client import client_options
from streams_app.kafka.fetching import PREFETCH_BACKOFF, is_behind, notify_waiters, take_fetched
from streams_app.kafka.patches.fetch_times import watch
from streams_app.kafka.patches.frames import ReceivingLoop
from streams_app.kafka.requests import in_time
from streams_app.native import native_core

T = TypeVar("T")

FETCH_MAX_WAIT_MS, BUSY_FETCH_MAX_WAIT_MS = 50, 5
"""Longest wait of a fetch, in ms: the first while no partition is behind, the second while one is.

Each broker has one fetch in flight: while it waits for records of idle partitions, busy partitions receive no records.
"""

FETCH_MAX_BYTES = 4 * 1024 * 1024
"""Maximum bytes of a fetch reply, so that memory does not grow with the number of partitions."""

METADATA_MAX_AGE_MS = 30_000
"""Maximum time, in ms, until the client notices added partitions."""


class FoldingThread(AIOKafkaConsumerThread):
    """The thread in which Faust's aiokafka consumer runs; all calls of that consumer are made in it."""

    consumer: Any
    """The :class:`streams_app.kafka.consumer.FoldingConsumer` that owns the thread; a type would be a circular import."""
    room: int
    """Number of records that the next fetch may return; it may return a few more, because the batch of a partition is not split."""

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, thread_loop=ReceivingLoop(), **options)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seek_numbers: dict[TP, int] = defaultdict(int)
        self._core = native_core(self.consumer.settings.worker.native)
        self.room = 0

    def _start_thread(self) -> None:
        try:
            super()._start_thread()
        finally:
            self.thread_loop.close()  # mode only closes loops that it has created

    def _stopped_set(self) -> None:
        """Wake tasks that wait for the end of this thread. After a crash, its loop may already be closed; then no task waits."""
        try:
            super()._stopped_set()
        except RuntimeError:
            if not self.thread_loop.is_closed():
                raise

    def _create_worker_consumer(self, transport: Any) -> aiokafka.AIOKafkaConsumer:
        settings = self.consumer.settings
        conf = self.app.conf
        self._assignor = RoundRobinPartitionAssignor
        return aiokafka.AIOKafkaConsumer(
            **client_options(settings.kafka),
            client_id=conf.broker_client_id,
            group_id=settings.app_id,
            partition_assignment_strategy=[self._assignor],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            max_poll_records=conf.broker_max_poll_records,
            max_poll_interval_ms=int((conf.broker_max_poll_interval or 1000) * 1000),
            max_partition_fetch_bytes=conf.consumer_max_fetch_size,
            fetch_max_wait_ms=FETCH_MAX_WAIT_MS,
            fetch_max_bytes=FETCH_MAX_BYTES,
            request_timeout_ms=int(conf.broker_request_timeout * 1000),
            session_timeout_ms=int(conf.broker_session_timeout * 1000),
            rebalance_timeout_ms=int((conf.broker_rebalance_timeout or 10) * 1000),
            heartbeat_interval_ms=int(conf.broker_heartbeat_interval * 1000),
            metadata_max_age_ms=min(conf.consumer_metadata_max_age_ms, METADATA_MAX_AGE_MS),
            connections_max_idle_ms=conf.consumer_connections_max_idle_ms,
        )

    async def _fetch_records(
        self,
        consumer: aiokafka.AIOKafkaConsumer,
        active_partitions: set[TP],
        timeout: float | None = None,
        max_records: int | None = None,
    ) -> dict[TP, Batch]:
        """Take the records that aiokafka has fetched, one batch per partition; wait for them up to ``timeout`` seconds."""
        if not self.consumer.flow_active:
            return {}
        fetcher = consumer._fetcher
        if consumer._closed or fetcher._closed:
            raise ConsumerStoppedError
        watch(fetcher)
        fetcher._prefetch_backoff = PREFETCH_BACKOFF
        remaining = timeout or 0.0
        loop = asyncio.get_running_loop()
        with fetcher._subscriptions.fetch_context():
            while True:
                if fetcher._subscriptions.reassignment_in_progress:
                    await fetcher._subscriptions.wait_for_assignment()
                batches = take_fetched(fetcher, active_partitions, self.seek_numbers, self.room, max_records, self._core)
                if batches:
                    fetcher._fetch_max_wait_ms = BUSY_FETCH_MAX_WAIT_MS if is_behind(batches.values()) else FETCH_MAX_WAIT_MS
                if batches or remaining <= 0:
                    return batches
                started = loop.time()
                waiter = fetcher._create_fetch_waiter()
                done, _ = await asyncio.wait([waiter], timeout=remaining)
                if not done or fetcher._closed or not self.consumer.flow_active:
                    waiter.cancel()
                    return {}
                waiter.result()
                remaining -= loop.time() - started

    @property
    def client(self) -> aiokafka.AIOKafkaConsumer | None:
        """The aiokafka consumer; None before it is created. Other threads may only read the state of the consumer."""
        return self._consumer

    def wake(self) -> None:
        """Wake the fetch that waits for records, so that resumed partitions deliver at once; safe to call from any thread."""
        if self._consumer is not None and not self.thread_loop.is_closed():
            self.thread_loop.call_soon_threadsafe(notify_waiters, self._consumer)

    async def run(self, work: Callable[[aiokafka.AIOKafkaConsumer], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in this thread and await its result, for at most :data:`.requests.CALL_SECONDS`.

        The method queue of Faust's thread is not used, because its two workers may be busy with a fetch and a slow commit.

        Raises:
            KafkaConnectionError: The thread has ended, because the worker ends. A claim that is being repeated then waits until it
                is cancelled.
            TimeoutError: The coroutine took too long; its outcome is unknown.
        """

        async def bounded() -> T:
            return await in_time(work(self._ensure_consumer()))

        call = bounded()
        try:
            future = asyncio.run_coroutine_threadsafe(call, self.thread_loop)
        except RuntimeError as error:  # the loop is closed
            call.close()
            raise KafkaConnectionError("the consumer has stopped") from error
        return await asyncio.wrap_future(future)
