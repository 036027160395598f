"""A log in memory, with its consumer groups: the part of Kafka that delivery needs.

Each topic has one partition and exists as soon as it is used. Methods may be called from any thread.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streams_app.clock import Clock
from streams_app.delivery.producer import Outcomes, Outgoing
from streams_app.local.group import ConsumerGroup


@dataclass(frozen=True, slots=True)
class LocalRecord:
    """One record of a log; its attributes have the names that aiokafka uses."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class LocalBroker:
    """In-memory broker with all topics and consumer groups.

    Attributes:
        groups: Consumer groups by name.
    """

    def __init__(self, clock: Clock) -> None:
        """Create an empty log; ``clock`` sets the timestamp of records that have none."""
        self.groups: defaultdict[str, ConsumerGroup] = defaultdict(ConsumerGroup)
        self._clock = clock
        self._logs: defaultdict[str, list[LocalRecord]] = defaultdict(list)
        self._listeners: defaultdict[str, list[Callable[[], object]]] = defaultdict(list)
        self._lock = threading.Lock()

    def append(self, record: Outgoing) -> None:
        """Append a record and notify the readers of its topic."""
        at_ms = self._clock.now_ms() if record.timestamp_ms is None else record.timestamp_ms
        with self._lock:
            log = self._logs[record.topic]
            log.append(LocalRecord(len(log), at_ms, record.key, record.value, tuple(record.headers)))
            listeners = list(self._listeners[record.topic])
        for listener in listeners:
            listener()

    def records(self, topic: str, begin: int = 0, most: int | None = None) -> list[LocalRecord]:
        """Return the records of a topic from an offset on, up to ``most``."""
        with self._lock:
            return self._logs[topic][begin : None if most is None else begin + most]

    def end(self, topic: str) -> int:
        """Return the end of the log of a topic: the offset that the next appended record gets."""
        with self._lock:
            return len(self._logs[topic])

    def listen(self, topic: str, listener: Callable[[], object]) -> None:
        """Call ``listener`` after each record that is appended to a topic, in the appending thread."""
        with self._lock:
            self._listeners[topic].append(listener)

    def unlisten(self, topic: str, listener: Callable[[], object]) -> None:
        """Stop calling ``listener`` for a topic."""
        with self._lock:
            self._listeners[topic].remove(listener)


class MemoryProducer:
    """Producer that appends to the log at once; replaces :class:`streams_app.kafka.producer.AckedProducer`."""

    def __init__(self, broker: LocalBroker) -> None:
        """Create a producer for a log in memory."""
        self._broker = broker

    async def send(self, records: Sequence[Outgoing]) -> Outcomes:
        """Append records; return None for each, because all are acknowledged."""
        for record in records:
            self._broker.append(record)
        return [None] * len(records)

    async def stop(self) -> None:
        """Do nothing: there is no connection to close."""
