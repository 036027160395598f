"""A worker as a process: startup, graceful shutdown on SIGTERM, exit code.

:func:`streams_app.process_exit.exit_after` bounds the shutdown.

``streams-app worker`` runs this module, with or without folds. ``faust -A streams_app.worker worker`` does not: there, Faust's own
worker runs the application.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Collection
from typing import Final, Protocol

import uvloop

from streams_app.errors import InternalError, StreamsAppError, text_of
from streams_app.gc_tuning import search_cycles_rarely
from streams_app.process_exit import exit_after
from streams_app.settings import Settings
from streams_app.tracing import tracing_of
from streams_app.worker.components import assemble
from streams_app.worker.faust_app import FoldingApp, create_app
from streams_app.worker.selection import select

logger = logging.getLogger(__name__)

CANCEL_SECONDS: Final = 1.0
"""Time that a start has to end after a signal or an error has cancelled it; then the shutdown begins in any case."""


def serve(declared: Settings | FoldingApp, only: Collection[str] = ()) -> None:
    """Run a worker until SIGTERM or SIGINT.

    Args:
        declared: Settings, or an application that was created from settings and may have further agents and timers.
        only: Names of read stores, subscribers, live views or journals. The worker runs these only, and no folds; if empty, it runs
            everything.

    Raises:
        ConfigurationError: A name is unknown, topics or rights are missing, or a topic was recreated.
        TryAgainError: A dependency is not available at the start, no port is free, or another worker owns the partitions.
        InternalError: An unexpected error has ended the worker, for example an error of the catalogue's lifespan function.
    """
    settings = declared if isinstance(declared, Settings) else declared.settings
    tracing_of(settings)  # before any connection: no retry can resolve a missing package
    search_cycles_rarely()
    try:
        # The runner is not closed: see exit_now().
        asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_serve(declared, only))
    except StreamsAppError:
        raise
    except (Exception, asyncio.CancelledError) as error:
        logger.critical("internal failure", exc_info=error)
        raise InternalError(f"internal failure: {error!r}") from error


class Lifecycle(Protocol):
    """What a worker starts and stops: the Faust application, which also runs the components, or the components alone."""

    async def start(self) -> None:
        """Check all requirements, then start. After an error, :meth:`stop` must be called."""

    async def stop(self) -> None:
        """Commit, leave all consumer groups, and close all resources; also after a failed or cancelled start."""


async def _serve(declared: Settings | FoldingApp, only: Collection[str]) -> None:
    """Start a worker, wait until a signal or an error ends it, and stop it within a time limit.

    A worker joins its consumer groups, and shares their partitions with other workers. If Kafka, Redis, a store or a source of
    values becomes unavailable after the start, the worker waits until it is back.
    """
    settings = declared if isinstance(declared, Settings) else declared.settings
    stop, fatal = _stop_on_signals(), FatalError()
    lifecycle = _lifecycle_of(declared, only, fatal)
    starting = asyncio.create_task(lifecycle.start(), name="start")
    ending = [asyncio.create_task(stop.wait(), name="stop"), asyncio.create_task(fatal.wait(), name="failure")]
    error: BaseException | None = None
    try:
        await asyncio.wait([starting, *ending], return_when=asyncio.FIRST_COMPLETED)
        error = _failure_of(starting)
        if starting.done() and error is None:
            await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
    finally:
        exit_after(settings.worker.grace_seconds)
        for task in (starting, *ending):
            task.cancel()
        await asyncio.wait([starting], timeout=CANCEL_SECONDS)
        if not starting.cancelled():
            error = error or _failure_of(starting)
        error = fatal.error or error
        await _stop(lifecycle, error)
    if (error := error or fatal.error) is not None:
        raise error
    logger.info("worker ended")


def _lifecycle_of(declared: Settings | FoldingApp, only: Collection[str], fatal: FatalError) -> Lifecycle:
    """Create what the worker runs, without connecting, and log its names."""
    settings = declared if isinstance(declared, Settings) else declared.settings
    lifecycle: Lifecycle
    if only or not settings.folds:
        selection = select(settings, only)
        kind, names = "runs", selection.names
        lifecycle = assemble(settings, selection, fatal.report)
    else:
        kind, names = "folds", [fold.name for fold in settings.folds]
        lifecycle = app = create_app(settings) if isinstance(declared, Settings) else declared
        app.report_fatal = fatal.report
    logger.info(
        "worker starts app_id=%s %s=%s kafka=%s redis=%s",
        settings.app_id, kind, ",".join(names), settings.kafka.bootstrap_servers, settings.redis.redacted_url,
    )  # fmt: skip
    return lifecycle


class FatalError:
    """Stores the first error after which the process cannot continue."""

    def __init__(self) -> None:
        """Create it in the event loop of the worker."""
        self.error: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._is_reported = asyncio.Event()

    def report(self, error: BaseException) -> None:
        """Log and store an error, unless one is stored already; safe to call from any thread."""
        if self.error is None:
            self.error = error
            logger.error("the worker ends error=%s", text_of(error))
            self._loop.call_soon_threadsafe(self._is_reported.set)

    async def wait(self) -> None:
        await self._is_reported.wait()


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, _on_signal, stop, number)
    return stop


def _on_signal(stop: asyncio.Event, number: int) -> None:
    logger.info("signal received, committing and leaving the group signal=%s", signal.Signals(number).name)
    stop.set()


async def _stop(lifecycle: Lifecycle, error: BaseException | None) -> None:
    """Stop a worker. If that fails after an error that ended the worker, only log it."""
    try:
        await lifecycle.stop()
    except Exception:
        # Any error, because the shutdown calls handlers of the user.
        if error is None:
            raise
        logger.exception("the worker did not stop cleanly")


def _failure_of(starting: asyncio.Task[None]) -> BaseException | None:
    """Return the error of a failed start, also if it was cancelled; None if it succeeded or has not ended."""
    if not starting.done():
        return None
    return asyncio.CancelledError("the start was cancelled") if starting.cancelled() else starting.exception()
