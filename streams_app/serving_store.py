"""A worker that runs one read store and folds nothing: ``streams-app worker --only NAME``.

It is a member of the store's consumer group as any worker is, and shares its partitions with them. Faust and Redis are not used.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Final

import uvloop

from streams_app.clock import SystemClock
from streams_app.http import HttpServer
from streams_app.kafka.member import wait
from streams_app.metrics import Metrics
from streams_app.read_store.agents.agent import ReadStoreAgent
from streams_app.settings import ReadStoreSettings, Settings
from streams_app.status import Status

logger = logging.getLogger(__name__)

BEAT_SECONDS: Final = 1.0


def serve_store(settings: Settings, store: ReadStoreSettings) -> None:
    """Runs one read store until SIGTERM or SIGINT; a store, a source or a Kafka that is away is waited for.

    Raises:
        ConfigurationError: The store or its source cannot be used.
        TryAgainError: There is no port for the metrics.
        ExceptionGroup: A defect has ended it.
    """
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_serve(settings, store))


async def _serve(settings: Settings, store: ReadStoreSettings) -> None:
    stop, clock, metrics, status = asyncio.Event(), SystemClock(), Metrics(settings), Status()
    agent = ReadStoreAgent(settings, store, metrics, clock)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    http = HttpServer(settings.http, status, metrics, clock)
    http.start()
    logger.info("worker starts app_id=%s only=%s", settings.app_id, store.name)
    status.clear("start")
    running = asyncio.create_task(agent.run(stop), name=store.group)
    try:
        while not (stop.is_set() or running.done()):
            status.beat(clock.monotonic_ms())
            await wait(stop, BEAT_SECONDS)
        await running
    finally:
        http.stop()
    logger.info("worker ended")
