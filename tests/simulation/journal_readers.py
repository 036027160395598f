"""Readers of journals in a simulation: each follows one key from a cursor, and checks that it misses no event without a report."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from streams_app.journal.core.entry import Row
from streams_app.journal.reading.shard_position import MissingOffsets, ShardPosition
from streams_app.journal.store.journal_store import JournalScripts, JournalShardReader, NoStateReply, RemovedReply, Reply
from tests.simulation.hubs import HubLink
from tests.simulation.journal_model import JournalModel

if TYPE_CHECKING:
    from tests.simulation.world import World

READERS = 3
MAX_BYTES = (1, 300, 5_000)
STALL_SECONDS = 3.0


class SimulatedReader:
    """One reader of one key."""

    def __init__(self, world: World, model: JournalModel, reader: JournalShardReader, key: bytes) -> None:
        self._position = ShardPosition(is_followed=True)
        self._world = world
        self._model = model
        self._reader = reader
        self._key = key

    @property
    def after(self) -> int:
        """Last offset that it has passed."""
        return self._position.offset

    @property
    def is_done(self) -> bool:
        """Whether it has reached the end of the log."""
        return self.after + 1 >= self._world.log.end

    async def run(self) -> None:
        """Read forever, sometimes from another cursor."""
        world = self._world
        while True:
            await asyncio.sleep(world.rng.uniform(0.0, STALL_SECONDS if world.has_fault(0.1) else 0.4))  # virtual time
            if world.has_fault(0.03):
                self._position = ShardPosition(world.rng.randint(-1, max(0, world.log.stable - 1)), is_followed=True)
            try:
                reply = await self._reader.read(self._model.keys, self._key, self.after, world.rng.choice(MAX_BYTES))
            except RedisError:
                continue
            self._take(reply)

    def _take(self, reply: Reply) -> None:
        before = self.after
        taken = self._position.take([self._key], [reply])
        items = list(taken.items)
        for item in items:
            self._position.had(item)
        self._position.settle(taken.up_to)
        if not isinstance(reply, NoStateReply) and (self.after < before or (self.after == before < reply.fence)):
            self._report(f"stays at {self.after}, the fence is {reply.fence}")
        if not isinstance(reply, NoStateReply | RemovedReply) and self.after > max(before, reply.fence):
            self._report(f"is at {self.after}, the fence is {reply.fence}")
        lost = [item for item in items if isinstance(item, MissingOffsets)]
        for item in lost:
            if not self._is_lost(item, reply):
                self._report(f"receives {item}, which is not lost")
        expected = [
            row
            for (key, offset), row in self._model.expected(before + 1, self.after).items()
            if key == self._key and not any(first <= offset <= last for first, last, _ in lost)
        ]
        if (rows := [item for item in items if isinstance(item, Row)]) != expected:
            self._report(f"has {[row.offset for row in rows]} up to {self.after}, not {[row.offset for row in expected]}")

    def _is_lost(self, lost: MissingOffsets, reply: Reply) -> bool:
        """Whether the reported offsets are lost."""
        match lost.why:
            case "removed":
                return isinstance(reply, RemovedReply) and lost.last < reply.floor
            case "retention":
                return lost.last < self._world.log.start
        return "flips" in self._world.mix.faults

    def _report(self, what: str) -> None:
        self._world.report_fault("read", f"{self._key!r} of {self._model.journal.name} after {self.after} {what}")


class JournalReaders:
    """The readers of a schedule."""

    def __init__(self, world: World, models: list[JournalModel], keys: list[list[bytes]]) -> None:
        """Start the readers, within the event loop.

        Args:
            world: The schedule.
            models: The journals.
            keys: Keys of each journal.
        """
        self._world = world
        link: Any = HubLink(world)
        reader = JournalShardReader(JournalScripts(link))
        self.readers = [
            SimulatedReader(world, model, reader, world.rng.choice(some))
            for model, some in zip(models, keys, strict=True)
            for _ in range(READERS)
        ]
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(reader.run(), context=contextvars.Context()) for reader in self.readers]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._world.report_fault("crash", f"{task} {error!r}")
