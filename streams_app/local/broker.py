"""A log in memory, with its consumer groups: the part of Kafka that delivery needs.

Each topic has one partition and exists as soon as it is used. Methods may be called from any thread.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streams_app.clock import Clock
from streams_app.delivery.producer import Outcomes, OutgoingRecord
from streams_app.local.group import ConsumerGroup


@dataclass(frozen=True, slots=True)
class LocalRecord:
    """One record of a log, with the attribute names of aiokafka; ``timestamp`` is in ms since 1970."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class LocalBroker:
    """In-memory broker with all topics and consumer groups.

    Attributes:
        groups: Consumer groups by name. A group exists as soon as its name is looked up.
    """

    def __init__(self, clock: Clock) -> None:
        self.groups: defaultdict[str, ConsumerGroup] = defaultdict(ConsumerGroup)
        self._clock = clock
        self._logs: defaultdict[str, list[LocalRecord]] = defaultdict(list)
        self._listeners: defaultdict[str, list[Callable[[], object]]] = defaultdict(list)
        self._lock = threading.Lock()

    def append(self, record: OutgoingRecord) -> None:
        """Append a record to its topic, then call the listeners of the topic in this thread."""
        at_ms = self._clock.now_ms() if record.timestamp_ms is None else record.timestamp_ms
        with self._lock:
            log = self._logs[record.topic]
            log.append(LocalRecord(len(log), at_ms, record.key, record.value, tuple(record.headers)))
            listeners = list(self._listeners[record.topic])
        for listener in listeners:
            listener()

    def records(self, topic: str, begin: int = 0, most: int | None = None) -> list[LocalRecord]:
        with self._lock:
            return self._logs[topic][begin : None if most is None else begin + most]

    def end(self, topic: str) -> int:
        """Return the end of the log of a topic: the offset that the next appended record gets."""
        with self._lock:
            return len(self._logs[topic])

    def listen(self, topic: str, listener: Callable[[], object]) -> None:
        """Register a function that is called after each later append to a topic, in the thread that appends."""
        with self._lock:
            self._listeners[topic].append(listener)

    def unlisten(self, topic: str, listener: Callable[[], object]) -> None:
        with self._lock:
            self._listeners[topic].remove(listener)


class MemoryProducer:
    """Producer that appends to the log at once; replaces :class:`streams_app.kafka.producer.AckedProducer`."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker

    async def send(self, records: Sequence[OutgoingRecord]) -> Outcomes:
        for record in records:
            self._broker.append(record)
        return [None] * len(records)

    async def stop(self) -> None: ...
