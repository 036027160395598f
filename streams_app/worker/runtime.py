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

import uvloop

from streams_app.errors import InternalError, StreamsAppError
from streams_app.gc_tuning import search_cycles_rarely
from streams_app.kafka.group_member import wait
from streams_app.process_exit import exit_after
from streams_app.settings import Settings
from streams_app.subscribers.running.requirements import enabled_subscriptions, require_rights, require_topics, rights_without_folds
from streams_app.tracing import tracing_of
from streams_app.worker.components import BEAT_SECONDS, assemble
from streams_app.worker.faust_app import FoldingApp, create_app
from streams_app.worker.selection import Selection, select

logger = logging.getLogger(__name__)


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
    running = _serve_selection(settings, select(settings, only)) if only or not settings.folds else _serve_folds(declared)
    search_cycles_rarely()
    try:
        # The runner is not closed: see exit_now().
        asyncio.Runner(loop_factory=uvloop.new_event_loop).run(running)
    except StreamsAppError:
        raise
    except (Exception, asyncio.CancelledError) as error:
        logger.critical("internal failure", exc_info=error)
        raise InternalError(f"internal failure: {error!r}") from error


async def _serve_folds(declared: Settings | FoldingApp) -> None:
    settings = declared if isinstance(declared, Settings) else declared.settings
    await require_topics(settings)
    app = create_app(settings) if isinstance(declared, Settings) else declared
    app.is_served = True
    stop = _stop_on_signals()
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
        exit_after(settings.worker.grace_seconds)
        if not starting.done():
            starting.cancel()
        await app.stop()
    if (fault := _fault_of(app, starting)) is not None:
        raise fault
    logger.info("worker ended")


async def _serve_selection(settings: Settings, selection: Selection) -> None:
    """Run a worker without folds.

    The worker joins its consumer groups like any other worker, and shares their partitions with other workers. Faust is not used.
    If a store, a source of values, Redis or Kafka becomes unavailable after the start, the worker waits until it is back.
    """
    stop, fatal = _stop_on_signals(), _FatalError()
    selected = selection.subscribers
    subscriptions = [one for one in enabled_subscriptions(settings) if one.subscriber.name in selected] if selected else []
    needed = rights_without_folds(settings, selection.stores, subscriptions, selection.views, selection.journals)
    await require_rights(settings, list(needed))
    components = assemble(settings, selection, fatal.put)
    try:
        await components.prepare()
        logger.info(
            "worker starts app_id=%s runs=%s kafka=%s redis=%s",
            settings.app_id, ",".join(selection.names), settings.kafka.bootstrap_servers, settings.redis.redacted_url,
        )  # fmt: skip
        components.start()
        while not (stop.is_set() or fatal.error):
            await wait(stop, BEAT_SECONDS)
        exit_after(settings.worker.grace_seconds)
    finally:
        await components.stop()
    if fatal.error is not None:
        raise fatal.error
    logger.info("worker ended")


class _FatalError:
    """Stores the first error after which the process cannot continue."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def put(self, error: BaseException) -> None:
        """Store an error unless one is stored already; safe to call from any thread."""
        self.error = self.error or error


def _stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, _on_signal, stop, number)
    return stop


def _on_signal(stop: asyncio.Event, number: int) -> None:
    logger.info("signal received, committing and leaving the group signal=%s", signal.Signals(number).name)
    stop.set()


def _fault_of(app: FoldingApp, starting: asyncio.Task[None]) -> BaseException | None:
    """Return the error that has ended the Faust application, or its start; None if it was stopped."""
    if app.fatal is not None:
        return app.fatal
    failed_start = starting.exception() if starting.done() and not starting.cancelled() else None
    fault: BaseException | None = failed_start or app.crash_reason
    return fault
