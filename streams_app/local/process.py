"""What of a worker calls subscribers, over a broker in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.delivery.producer import Producer
from streams_app.events.publishing import Events
from streams_app.local.broker import LocalBroker
from streams_app.local.member import LocalMember
from streams_app.settings import Settings
from streams_app.subscribers.declaration.catalogue import Lifespan
from streams_app.subscribers.declaration.original_position import again_topic
from streams_app.subscribers.declaration.subscription import Subscription
from streams_app.subscribers.execution.crash_isolation import CrashIsolation
from streams_app.subscribers.execution.decoding import decode_of
from streams_app.subscribers.execution.executor import Executor
from streams_app.subscribers.running.agent import OnEnded, Serving, serving
from streams_app.subscribers.running.lifespan_host import LifespanHost
from streams_app.subscribers.state.initial_offsets import mark_at
from streams_app.subscribers.state.store import Scripts

MakeSlots: TypeAlias = Callable[[Subscription, OnEnded], Executor]
"""Makes the slots of a subscriber; called on the loop of the process."""


class LocalProcess:
    """One process that calls subscribers. It owns their groups from :meth:`start` on, until it stops or another one starts."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        subscriptions: Sequence[Subscription],
        *,
        broker: LocalBroker,
        scripts: Scripts,
        producer: Producer,
        events: Events,
        clock: Clock,
        slots: MakeSlots,
        users: asyncio.AbstractEventLoop,
        lifespan: Lifespan | None,
        on_fatal: Callable[[LocalMember, BaseException], None],
    ) -> None:
        """Calls nothing yet; made on the loop of the process.

        Args:
            name: Tells it from others.
            settings: Of the application.
            subscriptions: What is called.
            broker: Has the log and the groups.
            scripts: In the place of Redis.
            producer: Sends dead letters.
            events: Publishes what functions want published.
            clock: Of the process.
            slots: Makes the slots of a subscriber.
            users: Where functions that are ``async`` run.
            lifespan: Of the catalogue.
            on_fatal: Called with an error after which a member cannot go on.
        """
        self._settings = settings
        self._clock = clock
        self._shared = LifespanHost(users, lifespan, events)
        self._is_open = False
        self._served: list[tuple[LocalMember, Serving]] = []
        again, trials = again_topic(settings.app_id), CrashIsolation()
        for one in subscriptions:
            if one.subscriber.idempotent == "no":
                _place(broker, one, [one.topic, again])
            member = LocalMember(broker, one.group, name, [one.topic, again], clock)
            self._served.append((
                member,
                serving(
                    settings, one.subscriber, member, topic=one.topic, dead_letters=one.dead_letters,
                    decode=decode_of(one.subscriber, settings.limits, events, again), scripts=scripts,
                    producer=producer, clock=clock, runner=partial(slots, one),
                    on_fatal=partial(on_fatal, member), trials=trials, again=again,
                ),
            ))  # fmt: skip

    async def start(self) -> None:
        """Opens what functions share, and takes the groups."""
        await self._shared.__aenter__()
        self._is_open = True
        worker = self._settings.worker
        for member, served in self._served:
            member.join(served.ownership, worker.tick_ms / 1000, worker.commit_every_ms / 1000)

    async def stop(self, seconds: float | None = None) -> None:
        """Lets what runs end, commits, and closes what functions share.

        Args:
            seconds: So long that may take; None: as long as a rebalance waits for it.
        """
        await asyncio.gather(*(member.leave(seconds) for member, _ in self._served))
        for _, served in self._served:
            await served.dispatcher.runner.stop()
        if self._is_open:
            self._is_open = False
            await self._shared.__aexit__()

    def forget(self) -> None:
        """The process was killed: nobody tells it anything any more."""
        for member, _ in self._served:
            member.forget()


def _place(broker: LocalBroker, one: Subscription, topics: Sequence[str]) -> None:
    """Commits where a new subscriber begins that must not be called twice, as ``topics create`` does."""
    for topic in topics:
        begin = 0 if one.subscriber.start == "earliest" else broker.end(topic)
        broker.groups[one.group].committed.setdefault(TP(topic, 0), mark_at(one.subscriber.name, begin, ""))
