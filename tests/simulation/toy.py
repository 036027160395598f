"""The smallest processor: counts events by their keys in Redis. It shows the minimum that the delivery requires of a processor.

One script writes counts and fence, so they are always consistent. Every event below the fence is delivered, so the fence determines
the committed position. An event without a value is rejected: it is in the dead letters before the fence passes it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from streams_app.delivery.batch import Batch
from streams_app.delivery.claim import Claim
from streams_app.delivery.dead_letters import DeadLetterSender
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.processor import Processor
from streams_app.delivery.rejected_event import RejectedEvent
from streams_app.delivery.tasks import run
from streams_app.redis_access.client import REDIS_ERRORS

CLAIM = """#!lua
-- meta, counts; token, and the fence of a new state
-- include fenced.lua
if not state.fence then
  call('DEL', KEYS[2])
  call('HSET', meta, 'begin', arg.fence + 1, 'fence', arg.fence)
end
call('HSET', meta, 'token', arg.token)
return {'ok', call('HGET', meta, 'fence')}
"""

COUNT = """#!lua
-- meta, counts; token, expected fence, new fence, and the number of events of each key in the range
-- include fenced.lua
if state.token == arg.token and state.fence == arg.to then return {'already', ''} end
local refused = refusal()
if refused then return refused end
for key, count in pairs(arg.counts) do call('HINCRBY', KEYS[2], key, count) end
call('HSET', meta, 'fence', arg.to)
return {'ok', ''}
"""


class Toy(Processor):
    """Counts the events of one partition."""

    in_flight = 0

    def __init__(self, claiming: Any, counting: Any, redis: Any, meta: str, counts: str, dead_letters: DeadLetterSender) -> None:
        """``claiming`` and ``counting``: the scripts, as :class:`streams_app.delivery.scripts.Script`."""
        self._claiming, self._counting, self._redis, self._dead_letters = claiming, counting, redis, dead_letters
        self._meta, self._counts = meta, counts
        self._ranges: asyncio.Queue[Batch | None] = asyncio.Queue()
        self._fence = -1
        self._task: asyncio.Task[None] | None = None

    async def claim(self, claim: Claim) -> int:
        begin = claim.committed or OffsetAndMetadata(claim.log_bounds.begin)
        if claim.committed is None:
            await claim.commit_now(begin)
        _, fence = await self._claiming([self._meta, self._counts], {"token": claim.token, "fence": str(begin.offset - 1)})
        self._fence = int(fence)
        self._task = run(claim, self._count_forever(claim), "count")
        return self._fence + 1

    def deliver(self, batch: Batch) -> None:
        self.in_flight += len(batch.records)
        self._ranges.put_nowait(batch)

    async def position_to_commit(self) -> OffsetAndMetadata | None:
        fence = await self._redis.hget(self._meta, "fence")
        return None if fence is None else OffsetAndMetadata(int(fence) + 1)

    def tick(self, now_ms: int) -> None:
        """Check that its state still exists: without new events, nothing else would detect a rollback of Redis."""
        if self._ranges.empty():
            self._ranges.put_nowait(None)

    async def revoke(self, seconds: float) -> None:
        if self._task:
            self._task.cancel()

    async def _count_forever(self, claim: Claim) -> None:
        while True:
            batch = await self._ranges.get()
            await self._count(batch, claim.token)
            if batch:
                self.in_flight -= len(batch.records)
                claim.on_progress()

    async def _count(self, batch: Batch | None, token: str) -> None:
        """Count a range once, even if a reply is lost."""
        records, to = (batch.records, batch.end - 1) if batch else ([], self._fence)
        await self._dead_letters.send([RejectedEvent(record, "tombstone", "it is empty") for record in records if not record.value])
        counts = Counter(record.key or b"" for record in records if record.value)
        arguments = {"token": token, "fence": str(self._fence), "to": str(to), "counts": counts}
        while True:
            try:
                await self._counting([self._meta, self._counts], arguments)
            except REDIS_ERRORS:
                await asyncio.sleep(0.1)  # before the next attempt
                continue
            self._fence = to
            return
