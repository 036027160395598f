"""The consumer group at its coordinator, and the client by which the product commits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetCommitRequest_v2

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import Member, PartitionCommit
from streams_app.local.group import ConsumerGroup

if TYPE_CHECKING:
    from tests.simulation.worker import Worker

STALE_SECONDS = 8.0
ACCEPTED = 0


@dataclass(slots=True)
class SimulatedGroup(ConsumerGroup):
    """The consumer group of a simulated worker: it also knows the process behind its owner, and when its generation began.

    Attributes:
        worker: The process of the owner.
        bumped_at: When the generation began, in virtual seconds.
        rebalancing: Lock that is taken during a rebalance.
    """

    worker: Worker | None = None
    bumped_at: float = 0.0
    rebalancing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_empty(self) -> bool:
        """Whether the group has no member: the last one has died."""
        return self.worker is None or not self.worker.is_alive

    def commit_of(self, worker: Worker, tp: TP, offset: PartitionCommit, member: Member) -> int:
        """Accept a commit of the current owner, or one without a generation while the group is empty; return the error code."""
        rejection = None if member.generation < 0 and self.is_empty else self.rejection(member)
        if rejection is not None:
            return rejection.errno
        worker.world.ledger.on_commit(self.committed.get(tp), offset, worker.end_at_claim)
        self.committed[tp] = offset
        return ACCEPTED


class Coordinator:
    """One worker's connection to the coordinator: the part of aiokafka that ``commit_as`` uses.

    Attributes:
        generation: Of the client, which may be another than that of a claim; -1 after a rejection, until it has joined again.
        member_id: Of the client.
    """

    group_id = "g"

    def __init__(self, worker: Worker, group: SimulatedGroup, connection: asyncio.Lock) -> None:
        """Create a connection, which sends requests one after the other."""
        self._worker = worker
        self._group = group
        self._connection = connection
        self._commit_lock = asyncio.Lock()
        self._rejected_generation = 0

    @property
    def generation(self) -> int:
        """Generation of the group in this member."""
        return -1 if self._worker.generation == self._rejected_generation else self._worker.generation

    @property
    def member_id(self) -> str:
        """Name of the worker, which is the same in each generation."""
        return "" if self.generation < 0 else self._worker.name

    async def ensure_coordinator_known(self) -> None:
        """Wait for the coordinator, which is sometimes down for seconds."""
        world = self._worker.world
        if "stale" in world.mix.faults and world.has_fault(0.1 * world.mix.faults["stale"]):
            world.count("stale")
            await asyncio.sleep(world.rng.uniform(0.0, STALE_SECONDS))  # virtual time

    async def _send_req(self, request: OffsetCommitRequest) -> Any:
        """Send a request and return the reply; sometimes the connection is cut, and the request is executed later."""
        sent = request.build(OffsetCommitRequest_v2)
        member = Member(sent.consumer_group_generation_id, sent.consumer_id)
        ((topic, ((partition, offset, metadata),)),) = sent.topics
        taken = partial(self._group.commit_of, self._worker, TP(topic, partition), PartitionCommit(offset, metadata), member)
        world = self._worker.world
        async with self._connection:
            if "overtaken" in world.mix.faults and world.has_fault(0.1 * world.mix.faults["overtaken"]):
                world.count("overtaken")
                await self._worker.pause()
                world.later(taken)
                raise KafkaConnectionError("the connection was cut")
            code = await self._worker.call(taken, KafkaError)
        return SimpleNamespace(topics=[(topic, [(partition, code)])])

    def coordinator_dead(self) -> None:
        """Do nothing: the coordinator is found again at once."""

    def request_rejoin(self) -> None:
        """Do nothing: the group decides when to rebalance."""

    def reset_generation(self) -> None:
        """Reset the generation, because the broker does not know this member; it must join again."""
        self._rejected_generation = self._worker.generation
