"""What tests of staging share: chunks that are staged in small portions, and all that a shard holds."""

from __future__ import annotations

from datetime import timedelta

import pytest
from redis.asyncio import Redis

from streams_app.fold import Fold
from streams_app.folding.core.chunks import Chunk, FoldEvent, Scoring, chunks_of
from streams_app.folding.shard.staging import Staged, stage
from streams_app.folding.store import portions
from streams_app.folding.store.arguments import Arguments, Bounds, arguments_of
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.scripts import ScriptSet
from streams_app.folding.store.shard_store import ShardStore
from tests.conftest import Names
from tests.integration.test_scripts import BOUNDS, WALL, fold

ENDED = 5
LAST = ENDED + 1
FOLD = Fold(name="f", source="t", group_key="a", changed="m", quiet_period=timedelta(milliseconds=BOUNDS.quiet_ms))


def stage_all(monkeypatch: pytest.MonkeyPatch, *, records: int, groups: int) -> None:
    """Whatever is more than one portion of so much is staged."""
    monkeypatch.setattr(portions, "STAGED_RECORDS", records)
    monkeypatch.setattr(portions, "STAGED_GROUPS", groups)
    monkeypatch.setattr(portions, "SINGLE_GROUPS", groups)


async def small_store(redis: Redis, names: Names, monkeypatch: pytest.MonkeyPatch) -> ShardStore:
    """A claimed shard whose chunks are staged in portions of two sessions and one group."""
    stage_all(monkeypatch, records=2, groups=1)
    made = ShardStore(ScriptSet(redis), shard_keys(names.app_id, "f", "t", 0))
    await made.claim("me", -1, b"eeee", "")
    return made


def chunk_of(begin: int = 0) -> Chunk:
    """Five sessions that have ended, and two groups that are open, of offsets from ``begin`` on."""
    events = [FoldEvent(begin + number, 1_000 + begin + number, b"s%d" % number, {"u": number}) for number in range(ENDED)]
    events.append(FoldEvent(begin + ENDED, 2_000 + begin, b"sopen", {"u": 1}))
    events.append(FoldEvent(begin + LAST, 2_000 + begin, b"s0", {"w": 1}))
    (chunk,) = chunks_of(events, events[-1].offset, Scoring(0, WALL, None, BOUNDS.quiet_ms))
    return chunk


def packed(chunk: Chunk, bounds: Bounds = BOUNDS, *, sessions: bool = True) -> Arguments:
    return arguments_of(chunk, bounds, gaps_close=sessions, keeps_values=True, partitions=4, epoch=b"eeee")


OPENED = [FoldEvent(0, 1_000, b"sa", {"u": 1}), FoldEvent(1, 1_000, b"sb", {"u": 1})]
GOES_ON = [
    FoldEvent(2, 1_001, b"sa", {"u": 2, "v": 2}), FoldEvent(3, 1_001, b"sb", {"w": 3}), FoldEvent(4, 1_001, b"snew", {"u": 4})
]  # fmt: skip


async def begun(store: ShardStore, events: list[FoldEvent], bounds: Bounds = BOUNDS, *, sessions: bool = True) -> Staged:
    """Two groups are open, and what follows is staged."""
    await fold(store, -1, one_chunk(OPENED, sessions), bounds, sessions=sessions)
    arguments = packed(one_chunk(events, sessions), bounds, sessions=sessions)
    return await stage(store, ("me", 1, events[-1].offset), arguments, bounds, 4)


def one_chunk(events: list[FoldEvent], sessions: bool = True) -> Chunk:
    (chunk,) = chunks_of(events, events[-1].offset, Scoring(0, WALL, None, BOUNDS.quiet_ms if sessions else None))
    return chunk


async def state_of(redis: Redis, store: ShardStore) -> dict[bytes | str, object]:
    """Everything of the shard but its marks."""
    found: dict[bytes | str, object] = {}
    for key in await redis.keys(f"{store.keys.group_prefix}*"):
        found[key] = await redis.hgetall(key)
    for key in (store.keys.first, store.keys.due, store.keys.outbox):
        found[key] = await redis.zrange(key, 0, -1, withscores=True)
    return found
