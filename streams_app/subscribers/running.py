"""All subscribers of a worker, with what their functions share: one event loop, the lifespan of the catalogue, a publisher."""

from __future__ import annotations

import asyncio
from typing import Final

from redis.asyncio import Redis

from streams_app.clock import Clock
from streams_app.delivery.outgoing import Producer
from streams_app.errors import ConfigurationError
from streams_app.events.publishing import Events
from streams_app.kafka.admin import require
from streams_app.metrics import Metrics
from streams_app.settings import Settings
from streams_app.subscribers.agent import SubscriberAgent
from streams_app.subscribers.catalogue import Catalogue
from streams_app.subscribers.coroutines import UserLoop
from streams_app.subscribers.decoding import decode_of
from streams_app.subscribers.loading import catalogue_of
from streams_app.subscribers.put_back import again_topic
from streams_app.subscribers.shared import Shared
from streams_app.subscribers.subscription import Subscription, not_kept_yet, subscriptions_of
from streams_app.subscribers.topics import declared_topics

LOOP_SECONDS: Final = 2.0
"""So long a function may block the loop of all functions when the worker ends."""


class Subscribers:
    """The subscribers that a worker runs; each is a member of a consumer group of its own."""

    def __init__(self, settings: Settings, redis: Redis, producer: Producer, clock: Clock, metrics: Metrics) -> None:
        """Connects nothing yet.

        Args:
            settings: Of the application; they name a catalogue.
            redis: The application's Redis.
            producer: Sends dead letters.
            clock: Of the worker.
            metrics: Where subscribers and publications are counted.

        Raises:
            ConfigurationError: The catalogue cannot be imported, or does not fit the settings.
        """
        self._catalogue: Catalogue = catalogue_of(settings)
        self._settings = settings
        self._redis = redis
        self._producer = producer
        self._clock = clock
        self._metrics = metrics
        self._events = Events(settings, self._catalogue, metrics=metrics, clock=clock)
        self._subscriptions = [one for one in subscriptions_of(self._catalogue, settings) if one.subscriber.is_enabled]
        if faults := not_kept_yet(self._subscriptions):
            raise ConfigurationError(faults)

    async def require_topics(self) -> None:
        """Refuses to start where a topic is missing: a broker that makes it on demand gives it its own partition count.

        Raises:
            ConfigurationError: Topics are missing; all are named.
            TryAgainError: The broker cannot be reached.
        """
        await require(self._settings.kafka, declared_topics(self._settings))

    async def run(self, stop: asyncio.Event) -> None:
        """Calls functions until told to stop, then commits and leaves the groups.

        Args:
            stop: Set by the application.
        """
        users = UserLoop()
        try:
            async with Shared(users.loop, self._catalogue.lifespan, self._events):
                await asyncio.gather(*(self._agent(one, users).run(stop) for one in self._subscriptions))
        finally:
            users.stop(LOOP_SECONDS)

    def _agent(self, one: Subscription, users: UserLoop) -> SubscriberAgent:
        again = again_topic(self._settings.app_id)
        decode = decode_of(one.subscriber, self._settings.limits, self._events, self._clock.now_ms, again)
        return SubscriberAgent(
            self._settings, one.subscriber, topic=one.topic, dead_letters=one.dead_letters, decode=decode, redis=self._redis,
            producer=self._producer, clock=self._clock, users=users, again=again,
            metrics=self._metrics,
        )  # fmt: skip
