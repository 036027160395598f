"""Watches a worker from a separate thread: outages of Kafka and Redis, lag, and progress.

Faust can stop consuming while it sends heartbeats (faust-streaming #175, #523, #629), a client can retry forever silently, and a
main loop can hang. So this thread has its own event loop and its own connections to Kafka and Redis, and queries both every second.
An outage is shown by ``/health/ready`` and the metric ``streams_app_up``, and logged once. If only one of the two servers is down,
the metric ``streams_app_lag_events`` is still updated with the answers of the other one.

If a component with pending work makes no progress for half a minute without a known pause, the worker is not ready (see
:mod:`streams_app.health.progress`). After a minute, the process ends with exit code 75. A supervisor starts another one, and no
event is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Final, NamedTuple

from aiokafka.errors import KafkaError

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.delivery.ownership import Ownership
from streams_app.errors import TryAgainError, text_of
from streams_app.folding.agents.lag import PartitionEnds, StoredFences, lags
from streams_app.folding.agents.shard_snapshots import ClaimedShards
from streams_app.health.dependency_health import REDIS_LIMIT_MS, DependencyHealth, MissingTopics, gone_ms, kafka_limit_ms
from streams_app.health.metrics import Metrics
from streams_app.health.progress import STUCK_MS, UNCLAIMED, Progress, ProgressWatchdog
from streams_app.health.status import Status
from streams_app.kafka.open_transactions import OpenTransactions
from streams_app.kafka.source_ends import SourceEnds
from streams_app.redis_access.client import REDIS_ERRORS, WRITE_REJECTIONS, fault_in_reply
from streams_app.settings import Settings

logger = logging.getLogger(__name__)

ASK_EVERY_SECONDS: Final = 1.0
CHECK_EVERY_SECONDS: Final = 0.5
CALL_SECONDS: Final = 10.0
KAFKA, REDIS = "kafka", "redis"


class FoldingState(NamedTuple):
    """The claimed partitions and shards of a worker's folds, as the watchdog reads them."""

    ownership: Ownership
    shards: ClaimedShards


class Watchdog:
    """Watches the dependencies, the lag and the progress of one worker."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        metrics: Metrics,
        status: Status,
        stuck_ms: int = STUCK_MS,
        *,
        asks_redis: bool = True,
    ) -> None:
        """Create a watchdog that is not started.

        Args:
            settings: Settings with only the folds that this worker runs.
            asks_redis: Whether the worker uses Redis; read stores alone do not.
        """
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._status = status
        self._sources = SourceEnds(settings.kafka, settings.app_id, settings.sources)
        self._stored = StoredFences(settings)
        self._ends: dict[TP, int] = {}
        self._high: dict[TP, int] = {}
        self._known_ends = PartitionEnds()
        self._health = {
            KAFKA: DependencyHealth(
                f"Kafka at {settings.kafka.bootstrap_servers}", kafka_limit_ms(settings.kafka.session_timeout_ms)
            ),
        }
        if asks_redis:
            self._health[REDIS] = DependencyHealth(f"Redis at {settings.redis.redacted_url}", REDIS_LIMIT_MS)
        self._progress = ProgressWatchdog(status, self._end, stuck_ms)
        self._missing_topics = MissingTopics(gone_ms(settings.kafka.session_timeout_ms))
        self._is_stopped = threading.Event()
        self._groups: list[tuple[str, Ownership, bool]] = []
        self._readers: list[tuple[str, Ownership]] = []
        self._transactions = OpenTransactions(metrics, status)

    def watch(self, group: str, ownership: Ownership, *, is_essential: bool = False) -> None:
        """Add a consumer group of this process. From now on, its progress and its open transactions are watched.

        May be called before or after :meth:`start`.

        Args:
            group: Name of the group in logs and reasons, such as ``journal.accounts``.
            is_essential: Whether the process also ends if a partition of the group stays unclaimed, or makes no progress while
                Kafka is down. In other groups, the claim is retried without limit, and the worker continues.
        """
        self._groups.append((group, ownership, is_essential))
        self.watch_transactions(group, ownership)

    def watch_transactions(self, group: str, ownership: Ownership) -> None:
        """Add a consumer group of this process. From now on, open transactions that hide records from it are reported.

        May be called before or after :meth:`start`.
        """
        self._readers.append((group, ownership))

    def start(self, folding: FoldingState | None = None) -> None:
        """Start the thread that watches servers, groups, and the lag of folds. At first, Kafka and Redis count as up."""
        for component in self._health:
            self._metrics.up.labels(component=component).set(1)
        threading.Thread(target=lambda: asyncio.run(self._watch(folding)), name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Request the thread to end, without waiting for it."""
        self._is_stopped.set()

    async def _watch(self, folding: FoldingState | None) -> None:
        asked = {KAFKA: lambda: self._ask(KAFKA, self._sources.ask_once), REDIS: self._ask_redis}
        tasks = [asyncio.create_task(self._forever(asked[component], ASK_EVERY_SECONDS)) for component in self._health]
        tasks.append(asyncio.create_task(self._forever(lambda: self._check(folding), CHECK_EVERY_SECONDS)))
        await asyncio.to_thread(self._is_stopped.wait)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._sources.close()
        with contextlib.suppress(*REDIS_ERRORS):
            await self._stored.close()

    async def _forever(self, step: Callable[[], Awaitable[None]], every_seconds: float) -> None:
        logged = ""
        while True:
            try:
                await step()
            except Exception as error:
                # Any error, because a watchdog must not end silently.
                if logged != (logged := text_of(error)):
                    logger.exception("watchdog failed, checking again")
            await asyncio.sleep(every_seconds)

    # ---- requests

    async def _ask(self, component: str, question: Callable[[], Awaitable[None]]) -> None:
        health = self._health[component]
        health.asked(self._clock.monotonic_ms(), self._clock.now_ms())
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await question()
        except (KafkaError, TimeoutError, *REDIS_ERRORS) as error:
            health.failed(str(error) or type(error).__name__, fault_in_reply(error) if component == REDIS else None)
        else:
            health.answered()

    async def _ask_redis(self) -> None:
        # Copy the ends before the fences are read: an end that is newer than its fence would count as lag.
        ends, high = dict(self._sources.ends), dict(self._sources.high)
        try:
            await self._ask(REDIS, lambda: self._stored.ask_once(ends))
        finally:
            self._ends, self._high = ends, high
        for cause in WRITE_REJECTIONS:
            self._metrics.redis_refuses_writes.labels(cause=cause).set(cause == self._stored.rejection)

    # ---- evaluation

    async def _check(self, folding: FoldingState | None) -> None:
        now_ms = self._clock.monotonic_ms()
        for component, health in self._health.items():
            self._report(component, health, now_ms)
        # Before the first assignment, the reader does not exist, and accessing it would create one in this thread.
        has_begun = not self._status.is_waiting_for("start")
        ends = self._report_lag(folding, now_ms, has_begun=has_begun) if folding is not None else {}
        self._judge_sources(now_ms)
        self._progress.check(self._progress_by_component(ends, now_ms) if has_begun else {}, now_ms)
        for name, ownership in list(self._readers) if has_begun else []:
            self._transactions.observe(name, ownership.reader_views(), self._clock.now_ms())

    def _report_lag(self, folding: FoldingState, now_ms: int, *, has_begun: bool) -> dict[TP, int]:
        """Set the metric of each fold's lag behind the high watermarks; return the last stable offset of each source partition.

        If ``has_begun`` is False, no partition was assigned to this worker so far. Only the ends that the watchdog has queried are
        then used, because there are no fetch replies with newer ones.
        """
        read = {tp: folding.ownership.read_end(tp) for tp in self._ends} if has_begun else {}
        is_answering = not self._health[KAFKA].is_away
        high = self._known_ends.combined(self._high, read, now_ms, is_answering=is_answering)
        fences = {**self._stored.fences, **folding.shards.fences()}
        found = lags(self._settings.folds, high, self._sources.begins, self._sources.committed, fences)
        for fold, lag in found.items():
            self._metrics.lag_events.labels(fold=fold).set(lag)
        return self._known_ends.combined(self._ends, read, now_ms, is_answering=is_answering)

    def _progress_by_component(self, ends: Mapping[TP, int], now_ms: int) -> dict[Hashable, Progress]:
        """Return the progress of the watched groups, by group and component: two groups may read the same partition."""
        is_away = self._status.is_waiting_for(f"{KAFKA}-away")
        return {
            (group, key): one._replace(what=f"group={group} {one.what}")
            for group, ownership, is_essential in list(self._groups)
            for key, one in ownership.progress(ends, now_ms).items()
            if is_essential or not (is_away or one.position == UNCLAIMED)
        }

    def _report(self, component: str, health: DependencyHealth, now_ms: int) -> None:
        change = health.check(now_ms, self._clock.now_ms())
        if change == "away":
            # The end of an outage is also a warning, so that operators who hide INFO see it.
            logger.warning("%s is unavailable since %s error=%s", health.what, health.since, health.error)
            self._metrics.up.labels(component=component).set(0)
        elif change == "back":
            logger.warning("%s is back after %.0f s", health.what, health.lasted_ms / 1000)
            self._metrics.up.labels(component=component).set(1)
            self._status.clear(f"{component}-away")
        if health.is_away:
            self._status.set_not_ready(f"{component}-away", health.reason)

    def _judge_sources(self, now_ms: int) -> None:
        if self._health[KAFKA].is_away:
            return
        missing = self._sources.missing
        restored, gone = self._missing_topics.observe(now_ms, missing)
        for topic in restored:
            self._status.clear(f"source:{topic}")
        for topic in missing:
            self._status.set_not_ready(f"source:{topic}", f"topic {topic!r} does not exist any more")
        for topic in gone:
            self._end(f"topic {topic!r} does not exist any more")

    def _end(self, what: str) -> None:
        if self._is_stopped.is_set():
            return None
        logger.critical("%s, ending with exit code %d; nothing is lost", what, TryAgainError.exit_code)
        logging.shutdown()
        os._exit(TryAgainError.exit_code)
