"""What the broker reports about the topics and groups that an application declares; the command ``check`` fetches it once.

A broker that does not answer is a fact, too. Checks that need more, such as records of logs, fetch it themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from streams_app.delivery.batch import TP
from streams_app.errors import StreamsAppError
from streams_app.kafka.rights import TOPIC, Granted


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
