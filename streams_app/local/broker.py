"""A log in memory, with consumer groups: the part of Kafka that delivery needs.

Each topic has one partition and exists as soon as it is used. Methods may be called from any thread.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import Committed, Member, NotOwnerError
from streams_app.delivery.producer import Outcomes, Outgoing


@dataclass(frozen=True, slots=True)
class LocalRecord:
    """One record of a log; its attributes have the names that aiokafka uses."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


@dataclass(slots=True)
class Group:
    """A consumer group as its coordinator sees it: one member owns all partitions.

    Attributes:
        generation: Increases each time the group gets an owner.
        owner: Id of the current member.
        committed: Last commit of each partition.
    """

    generation: int = 0
    owner: str = ""
    committed: dict[TP, Committed] = field(default_factory=dict)

    def give(self, owner: str) -> int:
        """Make a member the owner of all partitions; return the new generation."""
        self.generation, self.owner = self.generation + 1, owner
        return self.generation

    def commit(self, marks: Mapping[TP, Committed], claim: Member) -> None:
        """Accept a commit of the current owner.

        Raises:
            NotOwnerError: The commit is of another member or generation.
        """
        if claim != Member(self.generation, self.owner):
            raise NotOwnerError(f"generation {claim.generation} of {claim.member_id} is not {self.generation} of {self.owner}")
        self.committed.update(marks)


class LocalBroker:
    """All topics and groups in memory.

    Attributes:
        groups: Group of each name.
    """

    def __init__(self, clock: Clock) -> None:
        """Create an empty log; ``clock`` sets the timestamp of records that have none."""
        self.groups: defaultdict[str, Group] = defaultdict(Group)
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
        for tell in listeners:
            tell()

    def records(self, topic: str, begin: int = 0, most: int | None = None) -> list[LocalRecord]:
        """Return the records of a topic from an offset on, up to ``most``."""
        with self._lock:
            return self._logs[topic][begin : None if most is None else begin + most]

    def end(self, topic: str) -> int:
        """Return the offset of the next record of a topic."""
        with self._lock:
            return len(self._logs[topic])

    def listen(self, topic: str, tell: Callable[[], object]) -> None:
        """Call ``tell`` after each record that is appended to a topic, in the appending thread."""
        with self._lock:
            self._listeners[topic].append(tell)

    def unlisten(self, topic: str, tell: Callable[[], object]) -> None:
        """Stop calling ``tell`` for a topic."""
        with self._lock:
            self._listeners[topic].remove(tell)


class MemoryProducer:
    """Appends to the log at once; replaces :class:`streams_app.kafka.producer.AckedProducer`."""

    def __init__(self, broker: LocalBroker) -> None:
        """Create a producer for a log in memory."""
        self._broker = broker

    async def send(self, records: Sequence[Outgoing]) -> Outcomes:
        """Append records; each is acknowledged."""
        for record in records:
            self._broker.append(record)
        return [None] * len(records)

    async def stop(self) -> None:
        """Do nothing: there is no connection to close."""
