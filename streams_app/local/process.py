"""Runs subscribers as a worker does, on a broker in memory, for tests and for programs without servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.delivery.ownership import Ownership
from streams_app.delivery.producer import Producer
from streams_app.delivery.scripts import Scripts
from streams_app.events.publishing import Events
from streams_app.local.broker import LocalBroker
from streams_app.local.member import LocalMember
from streams_app.settings import Settings
from streams_app.subscribers.declaration.catalogue import Lifespan
from streams_app.subscribers.declaration.replayed_event import replay_topic
from streams_app.subscribers.declaration.subscription import Subscription
from streams_app.subscribers.execution.crash_isolation import CrashIsolation
from streams_app.subscribers.execution.decoding import decode_of
from streams_app.subscribers.execution.executor import Executor
from streams_app.subscribers.running.agent import OnEnded, SubscriberRuntime, assemble_subscriber
from streams_app.subscribers.running.lifespan_host import LifespanHost
from streams_app.subscribers.state.initial_offsets import initial_commit

MakeSlots: TypeAlias = Callable[[Subscription, OnEnded], Executor]
"""Creates the executor of a subscriber; called on the event loop of the process."""


class LocalProcess:
    """Runs subscribers on a broker in memory: reads their topics and calls their functions as a worker does.

    This object owns the consumer groups of the subscribers from :meth:`start` until it is stopped, or until another process starts.
    """

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
        """Create the process on its event loop, without starting it.

        Args:
            name: Name that distinguishes this process from other processes.
            events: Publishes events from within functions.
            users: Event loop on which ``async`` functions run.
            on_fatal: Called with a member and the error after which it cannot continue.
        """
        self._settings = settings
        self._clock = clock
        self._shared = LifespanHost(users, lifespan, events)
        self._is_open = False
        self._served: list[tuple[LocalMember, SubscriberRuntime]] = []
        replays_topic, crash_isolation = replay_topic(settings.app_id), CrashIsolation()
        for one in subscriptions:
            if one.subscriber.requires_commit:
                _commit_initial_offsets(broker, one, [one.topic, replays_topic])
            member = LocalMember(broker, one.group, name, [one.topic, replays_topic], clock)
            self._served.append((
                member,
                assemble_subscriber(
                    settings, one.subscriber, topic=one.topic, dead_letters=one.dead_letters,
                    decode=decode_of(one.subscriber, settings.limits, events, replays_topic), scripts=scripts,
                    producer=producer, clock=clock, executor=partial(slots, one),
                    on_fatal=partial(on_fatal, member), crash_isolation=crash_isolation, replays_topic=replays_topic,
                ),
            ))  # fmt: skip

    async def start(self) -> None:
        """Enter the lifespan of the catalogue, and take over the consumer groups from a previous process."""
        await self._shared.__aenter__()
        self._is_open = True
        worker = self._settings.worker
        for member, served in self._served:
            ownership = Ownership(member, served.processors, served.config)
            member.join(ownership, worker.tick_ms / 1000, worker.commit_every_ms / 1000)

    async def stop(self, seconds: float | None = None) -> None:
        """Wait for running attempts, commit, release the consumer groups, and exit the lifespan."""
        await asyncio.gather(*(member.leave(seconds) for member, _ in self._served))
        for _, served in self._served:
            await served.dispatcher.executor.stop()
        if self._is_open:
            self._is_open = False
            await self._shared.__aexit__()

    def forget(self) -> None:
        """Stop delivering records, without a last commit, as if the process had been killed."""
        for member, _ in self._served:
            member.forget()


def _commit_initial_offsets(broker: LocalBroker, one: Subscription, topics: Sequence[str]) -> None:
    """Commit the initial offset of an at-most-once subscriber for each topic without a commit, as ``topics create`` does."""
    for topic in topics:
        begin = 0 if one.subscriber.start == "earliest" else broker.end(topic)
        broker.groups[one.group].committed.setdefault(TP(topic, 0), initial_commit(one.subscriber.name, begin, ""))
