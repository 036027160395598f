"""The consumer group as its coordinator knows it, and a client of it that the product commits through."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from aiokafka.errors import IllegalGenerationError, KafkaConnectionError, KafkaError, UnknownMemberIdError
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetCommitRequest_v2

from streams_app.delivery.group_consumer import Committed, Member

if TYPE_CHECKING:
    from tests.chaos.simulation_kafka import Log
    from tests.chaos.simulation_worker import Worker

STALE_SECONDS = 8.0
TAKEN = 0


@dataclass(slots=True)
class Group:
    """The consumer group, as its coordinator knows it."""

    log: Log
    generation: int = 0
    bumped_at: float = 0.0
    owner: Worker | None = None
    committed: Committed | None = None
    rebalancing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_empty(self) -> bool:
        """Whether it has no member: the last one has died."""
        return self.owner is None or not self.owner.is_alive

    def commit(self, worker: Worker, mark: Committed, member: Member) -> int:
        """Takes a commit of a member of the current generation, or one without a generation while there is no member.

        Returns:
            The code of the error with which any other is refused.
        """
        if member.generation >= 0 or not self.is_empty:
            if self.owner is None or member.member_id != self.owner.name:
                return UnknownMemberIdError.errno
            if member.generation != self.generation:
                return IllegalGenerationError.errno
        worker.world.ledger.on_commit(self.committed, mark, worker.end_at_claim)
        self.committed = mark
        return TAKEN


class Coordinator:
    """One worker's connection to the coordinator: the part of aiokafka that ``commit_as`` uses.

    Attributes:
        generation: Of the client, which may be another than that of a claim; -1 after a refusal, until it has joined anew.
        member_id: Of the client.
    """

    group_id = "g"

    def __init__(self, worker: Worker, group: Group, connection: asyncio.Lock) -> None:
        """Requests go over a connection one after the other."""
        self._worker = worker
        self._group = group
        self._connection = connection
        self._commit_lock = asyncio.Lock()
        self._refused = 0

    @property
    def generation(self) -> int:
        """As this member knows it."""
        return -1 if self._worker.generation == self._refused else self._worker.generation

    @property
    def member_id(self) -> str:
        """A worker has one name; each time it joins there is another generation."""
        return "" if self.generation < 0 else self._worker.name

    async def ensure_coordinator_known(self) -> None:
        """Now and then the coordinator is away for seconds."""
        world = self._worker.world
        if "stale" in world.mix.faults and world.has_fault(0.1 * world.mix.faults["stale"]):
            world.count("stale")
            await asyncio.sleep(world.rng.uniform(0.0, STALE_SECONDS))  # virtual time

    async def _send_req(self, request: OffsetCommitRequest) -> Any:
        """A request and its answer; now and then the connection is cut, and what was sent on it is taken later."""
        sent = request.build(OffsetCommitRequest_v2)
        member = Member(sent.consumer_group_generation_id, sent.consumer_id)
        ((topic, ((partition, offset, metadata),)),) = sent.topics
        taken = partial(self._group.commit, self._worker, Committed(offset, metadata), member)
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
        """It is found again at once."""

    def request_rejoin(self) -> None:
        """The group decides when there is a rebalance."""

    def reset_generation(self) -> None:
        """The broker does not know this member; it is none until it has joined anew."""
        self._refused = self._worker.generation
