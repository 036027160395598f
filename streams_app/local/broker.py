"""A log in memory, with consumer groups: what of Kafka the delivery needs.

Each topic has one partition, and is there when it is named. Methods may be called from any thread.
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
    """One record of a log; with the names that aiokafka gives to what it has."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


@dataclass(slots=True)
class Group:
    """A consumer group as its coordinator knows it: one member has everything.

    Attributes:
        generation: Grows each time the group is given to a member.
        owner: Id of that member.
        committed: What was committed last.
    """

    generation: int = 0
    owner: str = ""
    committed: dict[TP, Committed] = field(default_factory=dict)

    def give(self, owner: str) -> int:
        """Gives everything to a member; returns the generation that begins."""
        self.generation, self.owner = self.generation + 1, owner
        return self.generation

    def commit(self, marks: Mapping[TP, Committed], claim: Member) -> None:
        """Takes a commit of the present owner.

        Raises:
            NotOwnerError: Of anybody else, or under another generation.
        """
        if claim != Member(self.generation, self.owner):
            raise NotOwnerError(f"generation {claim.generation} of {claim.member_id} is not {self.generation} of {self.owner}")
        self.committed.update(marks)


class LocalBroker:
    """All topics and groups.

    Attributes:
        groups: Name → group.
    """

    def __init__(self, clock: Clock) -> None:
        """Has no record yet; ``clock`` times those without a time of their own."""
        self.groups: defaultdict[str, Group] = defaultdict(Group)
        self._clock = clock
        self._logs: defaultdict[str, list[LocalRecord]] = defaultdict(list)
        self._listeners: defaultdict[str, list[Callable[[], object]]] = defaultdict(list)
        self._lock = threading.Lock()

    def append(self, record: Outgoing) -> None:
        """Appends a record and tells whoever reads its topic."""
        at_ms = self._clock.now_ms() if record.timestamp_ms is None else record.timestamp_ms
        with self._lock:
            log = self._logs[record.topic]
            log.append(LocalRecord(len(log), at_ms, record.key, record.value, tuple(record.headers)))
            listeners = list(self._listeners[record.topic])
        for tell in listeners:
            tell()

    def records(self, topic: str, begin: int = 0, most: int | None = None) -> list[LocalRecord]:
        """Records of a topic from an offset on."""
        with self._lock:
            return self._logs[topic][begin : None if most is None else begin + most]

    def end(self, topic: str) -> int:
        """The offset of the next record of a topic."""
        with self._lock:
            return len(self._logs[topic])

    def listen(self, topic: str, tell: Callable[[], object]) -> None:
        """Calls ``tell`` after each record of a topic, in the thread that has appended it."""
        with self._lock:
            self._listeners[topic].append(tell)

    def unlisten(self, topic: str, tell: Callable[[], object]) -> None:
        """Calls it no longer."""
        with self._lock:
            self._listeners[topic].remove(tell)


class MemoryProducer:
    """Appends to the log at once; in the place of :class:`streams_app.kafka.producer.AckedProducer`."""

    def __init__(self, broker: LocalBroker) -> None:
        """Has nothing to send."""
        self._broker = broker

    async def send(self, records: Sequence[Outgoing]) -> Outcomes:
        """Each record is acknowledged."""
        for record in records:
            self._broker.append(record)
        return [None] * len(records)

    async def stop(self) -> None:
        """There is no connection to close."""
