"""What the checks know of an application and its servers, fetched once.

A server that does not answer is a fact, too. Checks that need more, such as records of logs, fetch it themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka.errors import KafkaError

from streams_app.delivery.batch import TP
from streams_app.errors import StreamsAppError
from streams_app.events.declaration import Event
from streams_app.kafka.admin import admin_client, partition_counts, topic_configs
from streams_app.kafka.rights import GROUP, TOPIC, Granted, RequiredRight, Right, granted_rights
from streams_app.kafka.topic_ids import topic_ids
from streams_app.requirements.components import inputs_of, rights_of, topics_of
from streams_app.requirements.workload import Workload, declared, without_subscribers
from streams_app.settings import Settings
from streams_app.subscribers.declaration.loading import catalogue_of
from streams_app.subscribers.declaration.subscription import Subscription


@dataclass(frozen=True, slots=True)
class Declarations:
    """What settings and catalogue declare.

    Attributes:
        workload: All that is declared, disabled subscribers included. Without events and subscribers if there is a ``fault``.
        events: Events of the catalogue, even if it contradicts the settings.
        fault: Why the catalogue cannot be used; None: it can be, or there is none.
    """

    settings: Settings
    workload: Workload
    events: Sequence[Event[Any, Any]] = ()
    fault: StreamsAppError | None = None

    @property
    def enabled(self) -> list[Subscription]:
        return [one for one in self.workload.subscriptions if one.subscriber.is_enabled]

    @property
    def running(self) -> Workload:
        """What workers run."""
        return self.workload._replace(subscriptions=self.enabled)

    def required_rights(self) -> list[RequiredRight]:
        """Return the rights that workers need; none if the catalogue cannot be used."""
        if self.fault is not None:
            return []
        return rights_of(self.running, topics_of(self.workload))

    def useful_rights(self) -> Iterator[RequiredRight]:
        """Yield the rights to describe the retention of sources, and to publish events that this application does not read."""
        if self.fault is not None:
            return
        compared = self.running._replace(stores=())  # no check compares how long an output is kept for its store
        for topic in sorted(inputs_of(compared)):
            yield RequiredRight(Right.DESCRIBE_CONFIGS, TOPIC, topic, "check cannot see how long it is kept")
        for event in self.events:
            if event.topic not in {*self.settings.sources, *(one.topic for one in self.enabled)}:
                yield RequiredRight(Right.WRITE, TOPIC, event.topic, f"event {event.key} cannot be published")


def declarations_of(settings: Settings) -> Declarations:
    """Import the catalogue, once even if this fails, because a module of the user may take long to fail."""
    events: Sequence[Event[Any, Any]] = ()
    try:
        if settings.events.catalogue is not None:
            events = catalogue_of(settings).events
        return Declarations(settings, declared(settings), events)
    except StreamsAppError as error:
        return Declarations(settings, without_subscribers(settings), events, error)


@dataclass(frozen=True, slots=True)
class KafkaFacts:
    """What the broker reports about the declared topics and groups.

    Attributes:
        fault: Why the broker does not answer, or denies access; None: it has answered.
        is_connected: Whether a connection was made, even if a later request has failed.
        partitions: Number of partitions of each topic that exists and is not hidden.
        configs: Settings of each of these topics; empty if the broker does not report them.
        ids: Id of each of these topics; empty if the request has failed.
        granted: Rights of this user by kind (topic or group) and name; a topic of unknown existence or rights may be left out.
    """

    fault: StreamsAppError | None = None
    is_connected: bool = False
    partitions: Mapping[str, int] = field(default_factory=dict)
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    granted: Mapping[tuple[str, str], Granted] = field(default_factory=dict)

    def is_hidden(self, topic: str) -> bool:
        """Return whether the broker hides a topic from this user; the check of rights reports it."""
        return self.granted.get((TOPIC, topic)) == frozenset()

    def hides_any(self, topics: Collection[str]) -> bool:
        return any(map(self.is_hidden, topics))

    def tps_of(self, topics: Iterable[str]) -> list[TP]:
        """Return the partitions of those topics that exist."""
        return [TP(topic, number) for topic in topics for number in range(self.partitions.get(topic, 0))]

    def retention_ms(self, topics: Collection[str]) -> dict[str, int]:
        """Return ``retention.ms`` of those topics for which the broker reports it; -1 means no limit."""
        return {name: int(config["retention.ms"]) for name in topics if "retention.ms" in (config := self.configs.get(name, {}))}


async def kafka_facts(declarations: Declarations) -> KafkaFacts:
    """Fetch what the checks need to know of Kafka, by one client. No topic is created."""
    is_connected = False
    topics = [topic.name for topic in topics_of(declarations.workload)]
    groups = sorted({right.name for right in declarations.required_rights() if right.kind == GROUP})
    try:
        async with admin_client(declarations.settings.kafka) as client:
            is_connected = True
            granted = await granted_rights(client, topics, groups)
            partitions = await partition_counts(client, [name for name in topics if granted.get((TOPIC, name)) != frozenset()])
            configs = await topic_configs(client, list(partitions)) if partitions else {}
            try:
                ids = await topic_ids(client._client, list(partitions)) if partitions else {}
            except (KafkaError, OSError, TimeoutError):
                ids = {}  # only the comparison of logs needs them
    except StreamsAppError as error:
        return KafkaFacts(error, is_connected)
    return KafkaFacts(None, is_connected, partitions, configs, ids, granted)
