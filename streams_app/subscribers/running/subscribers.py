"""All subscribers of a worker, and the objects that their functions share: event loop, lifespan of the catalogue, publisher."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any, Final

from redis.asyncio import Redis

from streams_app.clock import Clock
from streams_app.delivery.ownership import Ownership
from streams_app.delivery.producer import Producer
from streams_app.events.declaration import formats_of
from streams_app.events.publishing import Events
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.schemas.waiting import patient_registry
from streams_app.settings import Settings
from streams_app.subscribers.declaration.catalogue import Catalogue
from streams_app.subscribers.declaration.loading import catalogue_of
from streams_app.subscribers.declaration.replayed_event import replay_topic
from streams_app.subscribers.declaration.subscription import Subscription, subscriptions_of
from streams_app.subscribers.execution.async_executor import UserLoop
from streams_app.subscribers.execution.crash_isolation import CrashIsolation
from streams_app.subscribers.execution.decoding import decode_of
from streams_app.subscribers.execution.loop_monitor import LoopMonitor
from streams_app.subscribers.running.agent import RunningSubscriber, running_subscriber
from streams_app.subscribers.running.description import asyncapi_of, events_page, status_entry
from streams_app.subscribers.running.lifespan_host import LifespanHost

logger = logging.getLogger(__name__)

LOOP_SECONDS: Final = 2.0
"""How long a shutdown waits for a function that blocks the event loop of all ``async`` functions."""

NOT_ENTERED: Final = "the lifespan of the catalogue has not started yet, and no subscriber runs before"
LATE_SECONDS: Final = 5.0
"""If a lifespan takes longer than this to exit, a warning is logged. The process may end before the lifespan has ended."""


class Subscribers:
    """The subscribers that a worker runs, each with its own consumer group."""

    def __init__(
        self,
        settings: Settings,
        redis: Redis,
        producer: Producer,
        clock: Clock,
        metrics: Metrics,
        status: Status,
        on_fatal: Callable[[BaseException], None],
        watch: Callable[[str, Ownership], None],
        only: Collection[str] | None = None,
    ) -> None:
        """Import the catalogue and combine it with the settings.

        Args:
            status: Receives reasons why the worker is not ready, and remarks, for example about paused readers.
            watch: Called with the name and the ownership of each subscriber, so that the watchdog checks its progress.
            only: Names of the subscribers to run; None: all enabled ones.

        Raises:
            ConfigurationError: The catalogue cannot be imported, or contradicts the settings; or a format of an event needs a
                package that is not installed.
        """
        self._catalogue: Catalogue = catalogue_of(settings)
        self._settings = settings
        self._redis = redis
        self._producer = producer
        self._clock = clock
        self._metrics = metrics
        self._status = status
        self._on_fatal = on_fatal
        self._watch = watch
        self._running: dict[str, RunningSubscriber] = {}
        self._crash_isolation = CrashIsolation()
        self._events = Events(settings, self._catalogue, metrics=metrics, clock=clock)
        self._declared = subscriptions_of(self._catalogue, settings)
        enabled = [one for one in self._declared if one.subscriber.is_enabled]
        self._subscriptions = [one for one in enabled if only is None or one.subscriber.name in only]
        self._schemas = patient_registry(settings, formats_of(self._catalogue.events), clock, status, "subscribers")

    async def run(self, stop: asyncio.Event) -> None:
        """Run the subscribers until ``stop`` is set, then commit and leave the groups.

        Args:
            stop: Set by the caller when the worker shuts down.
        """
        logger.info("subscribers start subscribers=%s", ",".join(one.subscriber.name for one in self._subscriptions))
        users = UserLoop()
        watch = LoopMonitor(users, self._clock)
        shared = LifespanHost(users.loop, self._catalogue.lifespan, self._events)
        try:
            self._status.set_not_ready("lifespan", NOT_ENTERED)
            if not await shared.enter_unless(stop):
                return
            self._status.clear("lifespan")
            try:
                await self._call(users, watch, stop)
            finally:
                late = asyncio.get_running_loop().call_later(LATE_SECONDS, _report_late_exit)
                try:
                    await shared.__aexit__()
                finally:
                    late.cancel()
        finally:
            watch.stop()
            users.stop(LOOP_SECONDS)

    async def _call(self, users: UserLoop, watch: LoopMonitor, stop: asyncio.Event) -> None:
        self._running = {one.subscriber.name: self._create(one, users, watch) for one in self._subscriptions}
        for name, one in self._running.items():
            self._watch(name, one.agent.ownership)
        await asyncio.gather(*(one.agent.run(stop) for one in self._running.values()))

    def page(self) -> dict[str, Any]:
        """Return the JSON object of ``/events``: all events and subscribers, and the status of those that run in this worker.

        May be called from any thread.
        """
        running = self._running
        here = {name: status_entry(one.gauges.present, one.subscriber_metrics.done) for name, one in running.items()}
        return events_page(self._settings.app_id, self._catalogue, self._declared, here)

    def asyncapi(self) -> dict[str, Any]:
        """May be called from any thread."""
        return asyncapi_of(self._settings.app_id, self._catalogue, self._declared)

    def _create(self, one: Subscription, users: UserLoop, watch: LoopMonitor) -> RunningSubscriber:
        replays_topic = replay_topic(self._settings.app_id)
        schemas = None if self._schemas is None else self._schemas.registry
        decode = decode_of(one.subscriber, self._settings.limits, self._events, replays_topic, is_late=True, schemas=schemas)
        return running_subscriber(
            self._settings, one.subscriber, topic=one.topic, dead_letters=one.dead_letters, decode=decode, redis=self._redis,
            producer=self._producer, clock=self._clock, users=users, replays_topic=replays_topic,
            metrics=self._metrics, status=self._status, on_fatal=self._on_fatal, crash_isolation=self._crash_isolation,
            loop_monitor=watch, schemas=self._schemas,
        )  # fmt: skip


def _report_late_exit() -> None:
    logger.warning("the lifespan of the catalogue has not ended yet seconds=%s", LATE_SECONDS)
