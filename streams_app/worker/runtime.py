"""One worker as a process: started, stopped by SIGTERM in time, ended with the right exit code.

``streams-app worker`` runs this module. ``faust -A streams_app.worker worker`` does not: Faust's own worker does the same there.
"""

from __future__ import annotations

import asyncio
import logging
import signal

import uvloop

from streams_app.errors import InternalError, StreamsAppError
from streams_app.process import leave_in_time, search_cycles_rarely
from streams_app.settings import Settings
from streams_app.subscribers.starting import require_topics
from streams_app.worker.faust_app import FoldingApp, create_app

logger = logging.getLogger(__name__)


def serve(declared: Settings | FoldingApp) -> None:
    """Runs a worker until SIGTERM or SIGINT.

    Args:
        declared: Settings, or an application made of them, which may have agents and timers of its own.

    Raises:
        ConfigurationError: Topics are missing, or one was made again.
        TryAgainError: A dependency is away at the start, or another worker owns our partitions.
        InternalError: Anything else has ended it.
    """
    search_cycles_rarely()
    # The runner is not closed: see leave().
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_serve(declared))


async def _serve(declared: Settings | FoldingApp) -> None:
    settings = declared if isinstance(declared, Settings) else declared.settings
    await require_topics(settings)
    app = create_app(settings) if isinstance(declared, Settings) else declared
    app.is_served = True
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stop, number)
    logger.info(
        "worker starts app_id=%s folds=%s kafka=%s redis=%s",
        settings.app_id, ",".join(fold.name for fold in settings.folds), settings.kafka.bootstrap_servers,
        settings.redis.redacted_url,
    )  # fmt: skip
    starting = asyncio.create_task(app.start(), name="start")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    crashed = asyncio.create_task(app._crashed.wait(), name="crash")
    failed = asyncio.create_task(app.has_failed.wait(), name="failure")
    try:
        await asyncio.wait([starting, stopping, crashed, failed], return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and not starting.cancelled() and starting.exception() is None:
            await asyncio.wait([stopping, crashed, failed], return_when=asyncio.FIRST_COMPLETED)
    finally:
        leave_in_time(settings.worker.grace_seconds)
        if not starting.done():
            starting.cancel()
        await app.stop()
    _raise_fault(app, starting)
    logger.info("worker ended")


def _on_signal(stop: asyncio.Event, number: int) -> None:
    logger.info("signal received, committing and leaving the group signal=%s", signal.Signals(number).name)
    stop.set()


def _raise_fault(app: FoldingApp, starting: asyncio.Task[None]) -> None:
    fault: BaseException | None = app.fatal
    if fault is None and starting.done() and not starting.cancelled():
        fault = starting.exception()
    if fault is None:
        fault = app.crash_reason
    if fault is None:
        return
    if isinstance(fault, StreamsAppError):
        raise fault
    logger.critical("internal failure", exc_info=fault)
    raise InternalError(f"internal failure: {fault!r}") from fault
