"""A range of five events of four groups whose scripts take one group each, step by step."""

from __future__ import annotations

from dataclasses import replace

from redis.asyncio import Redis

from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.replies import FoldReply
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from tests.conftest import Names
from tests.helpers.folding.scripts import (
    BOUNDS,
    BriefStore,
    chunk_of,
    packed,
    send,
)

A, B, C, D = b"sa", b"sb", b"sc", b"sd"
TO = 9
EVENTS = [FoldEvent(at, 1_000 + at, group, {"u": at}) for at, group in enumerate([D, C, B, A, A])]
CHUNK = chunk_of(EVENTS, end=TO)
RANGE_FIELDS = {"to", "cursor", "cap", "arrived", "digest"}


async def step_by_step(redis: Redis, names: Names) -> ShardStore:
    """Return a claimed shard whose scripts take one group each."""
    made = BriefStore(ShardStore(FoldScripts(redis), shard_keys(names.app_id, "f", "t", 0)), 1)
    await made.claim("me", -1, b"eeee", "def")
    return made


async def step(store: ShardStore, cursor: bytes = b"", *, fence: int = -1, bounds: Bounds = BOUNDS) -> FoldReply:
    """Run one script of the range, with all groups beyond the cursor."""
    beyond = replace(CHUNK, groups={group: runs for group, runs in CHUNK.groups.items() if group > cursor})
    return await send(store, fence, beyond, packed(beyond, bounds), bounds, cursor=cursor)
