"""A worker that folds nothing: it runs read stores, subscribers, live views or journals.

``streams-app worker --only NAME`` and the worker of an application without folds are such. They are members of their consumer
groups as any worker is, and share partitions with the others. Faust is not used.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, Final, NamedTuple

import uvloop

from streams_app.checking.redis import warn_of_servers
from streams_app.clock import SystemClock
from streams_app.delivery.patience import DEPENDENCY_ERRORS
from streams_app.delivery.skew import SKEW_EVERY_SECONDS, SkewWatch
from streams_app.delivery.trusted_clock import TrustedClock
from streams_app.errors import ConfigurationError
from streams_app.folding.store.keys import probe_key
from streams_app.health.http import ASYNCAPI_PAGE, EVENTS_PAGE, HttpServer
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.journal.agents.agent import Journals
from streams_app.journal.reading.page import add_journal_pages
from streams_app.kafka.member import wait
from streams_app.kafka.producer import AckedProducer
from streams_app.live.agents.agent import LiveViews
from streams_app.process import leave_in_time, search_cycles_rarely
from streams_app.read_store.agents.access import require_store_access
from streams_app.read_store.agents.agent import ReadStoreAgent
from streams_app.redis_access.client import connect, require_access
from streams_app.settings import JournalSettings, LiveView, ReadStoreSettings, Settings
from streams_app.settings.base import suggestion
from streams_app.subscribers.loading import catalogue_of
from streams_app.subscribers.rights import enabled_of, needed_apart
from streams_app.subscribers.running import Subscribers
from streams_app.subscribers.starting import require_rights
from streams_app.subscribers.subscription import subscriptions_of
from streams_app.worker.watchdog import Watchdog

logger = logging.getLogger(__name__)

BEAT_SECONDS: Final = 1.0


class Chosen(NamedTuple):
    """What a worker runs.

    Attributes:
        stores: Read stores.
        subscribers: Names of subscribers.
        views: Live views.
        journals: Journals.
    """

    stores: Sequence[ReadStoreSettings]
    subscribers: Collection[str]
    views: Sequence[LiveView] = ()
    journals: Sequence[JournalSettings] = ()

    @property
    def names(self) -> list[str]:
        """All names, for people."""
        stores, views = (store.name for store in self.stores), (view.name for view in self.views)
        return [*stores, *self.subscribers, *views, *(journal.name for journal in self.journals)]

    @property
    def is_in_redis(self) -> bool:
        """Whether anything of it is in Redis; a read store alone has nothing there."""
        return bool(self.subscribers or self.views or self.journals)


def chosen(settings: Settings, names: Collection[str]) -> Chosen:
    """What is called by these names: read stores, subscribers, live views, journals.

    Without a name that is all enabled subscribers, all views and all journals.

    Raises:
        ConfigurationError: Nothing is called so, a subscriber is not enabled, or there is nothing to run.
    """
    enabled: dict[str, bool] = {}
    if settings.events.catalogue is not None:
        found = [one.subscriber for one in subscriptions_of(catalogue_of(settings), settings)]
        enabled = {one.name: one.is_enabled for one in found}
    stores = {store.name: store for store in settings.read_stores}
    views = {view.name: view for view in settings.live_of_topics}
    journals = {journal.name: journal for journal in settings.journals}
    known = list(dict.fromkeys([*stores, *enabled, *views, *journals]))
    folds, there = {fold.name for fold in settings.folds}, ", ".join(known) or "none"
    faults = [
        f"there is no read store, subscriber, live view or journal {name!r}{_hint(name, known, folds)} (there are: {there})"
        for name in names
        if name not in known
    ]
    if faults and settings.events.catalogue is None:
        faults.append("subscribers are declared in a catalogue, and events.catalogue is not set")
    others = {*stores, *views, *journals}
    faults += [f"subscriber {name!r} is not enabled" for name in names if name not in others and enabled.get(name) is False]
    if not names and not views and not journals and not any(enabled.values()):
        faults.append("there is nothing to run: no fold, no live view of a topic, no journal, and no subscriber that is enabled")
    if faults:
        raise ConfigurationError(faults)
    return Chosen(
        [stores[name] for name in names if name in stores],
        [name for name in names or enabled if enabled.get(name)],
        [views[name] for name in names or views if name in views],
        [journals[name] for name in names or journals if name in journals],
    )


def _hint(name: str, known: list[str], folds: Collection[str]) -> str:
    return ", but a fold: workers without --only run all folds" if name in folds else suggestion(name, known)


def serve_apart(settings: Settings, runs: Chosen) -> None:
    """Runs them until SIGTERM or SIGINT; a store, a source, a Redis or a Kafka that is away later on is waited for.

    Raises:
        ConfigurationError: One of them cannot be run, or its topics are missing.
        TryAgainError: Kafka cannot be reached at the start, or there is no port for the metrics.
        Exception: A defect, or one of the lifespan of the catalogue, has ended it.
    """
    search_cycles_rarely()
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_serve(settings, runs))


async def _serve(settings: Settings, runs: Chosen) -> None:
    stop, clock, metrics, status, fatal = asyncio.Event(), SystemClock(), Metrics(settings), Status(), _Fatal()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    subscriptions = [one for one in enabled_of(settings) if one.subscriber.name in runs.subscribers] if runs.subscribers else []
    await require_rights(settings, list(needed_apart(settings, runs.stores, subscriptions, runs.views, runs.journals)))
    async with AsyncExitStack() as stack:
        works: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}  # called once nothing can fail any more
        # Of the folds, which other workers run, this one tells nothing; and a read store keeps nothing in Redis.
        foldless = settings.model_copy(update={"folds": ()})
        watchdog = Watchdog(foldless, clock, metrics, status, asks_redis=runs.is_in_redis)
        agents = [(store, ReadStoreAgent(settings, store, metrics, clock)) for store in runs.stores]
        await require_store_access(runs.stores)
        if runs.is_in_redis:
            producer = AckedProducer(settings.kafka, client_id=f"{settings.app_id}-letters")
            stack.push_async_callback(producer.stop)
            redis = connect(settings.redis)
            stack.push_async_callback(redis.aclose)
            skew = SkewWatch(TrustedClock(clock), status, redis.time)
            await require_access(settings.redis, probe_key(settings.app_id))
            await skew.try_once()
            works["redis"] = partial(_look_at_redis, skew, partial(warn_of_servers, redis, settings), stop)
        if runs.subscribers:
            subscribers = Subscribers(
                settings, redis, producer, skew.clock, metrics, status, fatal.put, watchdog.watch, runs.subscribers
            )
            await subscribers.require_topics()
            status.pages |= {EVENTS_PAGE: subscribers.page, ASYNCAPI_PAGE: subscribers.asyncapi}
            works["subscribers"] = partial(subscribers.run, stop)
        if runs.views:
            live = LiveViews(settings, redis, producer, skew.clock, metrics, watchdog.watch, runs.views)
            await live.require_topics()
            works["live views"] = partial(live.run, stop)
        if runs.journals:
            journals = Journals(settings, redis, skew.clock, metrics, watchdog.watch, runs.journals)
            await journals.require_topics()
            works["journals"] = partial(journals.run, stop)
        for store, agent in agents:
            watchdog.watch_transactions(store.group, agent.ownership)
            works[store.group] = partial(agent.run, stop)
        http = HttpServer(settings.http, status, metrics, clock)
        add_journal_pages(http, settings, clock)
        http.start()
        stack.callback(http.stop)
        logger.info(
            "worker starts app_id=%s runs=%s kafka=%s redis=%s",
            settings.app_id, ",".join(runs.names), settings.kafka.bootstrap_servers, settings.redis.redacted_url,
        )  # fmt: skip
        status.clear("start")
        watchdog.start()
        grace_seconds = settings.worker.grace_seconds
        tasks = [asyncio.create_task(work(), name=name) for name, work in works.items()]
        await _until_told(tasks, stop, lambda: status.beat(clock.monotonic_ms()), fatal, watchdog, grace_seconds)
    logger.info("worker ended")


async def _look_at_redis(skew: SkewWatch, warn: Callable[[], Awaitable[None]], stop: asyncio.Event) -> None:
    """Says how Redis is set up, once it answers, and compares clocks until told to stop.

    Ids are kept by the hour and waits by the wall clock, which other workers are to read alike.
    """
    looking, stopping = asyncio.create_task(_look_forever(skew, warn)), asyncio.create_task(stop.wait())
    await asyncio.wait((looking, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    # A Redis that is frozen may take longer to be given up than a worker has to end.
    if not looking.cancel():
        looking.result()


async def _look_forever(skew: SkewWatch, warn: Callable[[], Awaitable[None]]) -> None:
    is_warned = False
    while True:
        if not is_warned:
            with suppress(*DEPENDENCY_ERRORS):
                await warn()
                is_warned = True
        await asyncio.sleep(SKEW_EVERY_SECONDS)
        await skew.try_once()


class _Fatal:
    """The first error after which the process cannot go on."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def put(self, error: BaseException) -> None:
        """Takes an error; called from any thread."""
        self.error = self.error or error


async def _until_told(
    tasks: Sequence[asyncio.Task[None]],
    stop: asyncio.Event,
    beat: Callable[[], None],
    fatal: _Fatal,
    watchdog: Watchdog,
    grace_seconds: float,
) -> None:
    """Waits for the end of all; the first that ends without having been told to ends the others."""
    try:
        while not (stop.is_set() or fatal.error or any(task.done() for task in tasks)):
            beat()
            await wait(stop, BEAT_SECONDS)
    finally:
        # What runs to its end now is not stuck, however long it takes.
        watchdog.stop()
        stop.set()
        leave_in_time(grace_seconds)
        running = set(tasks)
        while running:
            # What runs may take long, and a worker that waits for it is alive.
            _, running = await asyncio.wait(running, timeout=BEAT_SECONDS)
            beat()
    if fatal.error is not None:
        raise fatal.error
    for task in tasks:
        task.result()
