"""A released shard with packed groups, or whose records are not acknowledged: a worker of an older version can read them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from redis.asyncio import Redis

from streams_app import Fold
from streams_app.clock import SystemClock
from streams_app.delivery.batch import TP
from streams_app.delivery.claim import LogBounds
from streams_app.delivery.clocks import ReaderView, TrustedClock
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.partition import PartitionClaim
from streams_app.delivery.processor import Processor
from streams_app.folding.agents.processor import FoldProcessor
from streams_app.folding.agents.retired_folds import RetiredFoldProcessor
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.shard import shard as sharding
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from tests.conftest import Names
from tests.helpers.folding.scripts import entries_of, meta_of, open_groups, packed_in
from tests.helpers.folding.shards import context_of, decoded_batches_of, fold_some

FOLD = Fold(name="f", source="t", group_key="a", changed="m", quiet_period=timedelta(minutes=1), output="o", dead_letters="d")
TP_0 = TP("t", 0)


def shard_of(redis: Redis, names: Names) -> Shard:
    return Shard(FOLD, TP_0, ShardStore(FoldScripts(redis), shard_keys(names.app_id, "f", "t", 0)))


async def sealed(redis: Redis, names: Names) -> ShardStore:
    """Return the store of a shard of which one script has sealed three groups."""
    shard = shard_of(redis, names)
    await shard.claim(0, 1)
    await fold_some(shard, [FoldEvent(at, 1_000 + at, b"s%d" % at, {"u": 1}) for at in range(3)])
    await shard.seal(2_000, folded_until_ms=None, everything=True)
    assert [(0, [0, 1, 2])] == await entries_of(shard.store)
    assert (await meta_of(shard.store))["format"] in {"2", "3"}
    return shard.store


class SilentProducer:
    """Never gets an answer of the broker."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def send(self, records: Any) -> Any:
        self.asked.set()
        await asyncio.sleep(3_600)  # until it is cancelled


async def claimed(processor: Processor) -> None:
    bounds = LogBounds(0, 3, 0)
    reader = SimpleNamespace(reader_view=lambda _: (ReaderView(None, None), None))
    partition: Any = SimpleNamespace(group_consumer=reader, log_bounds_now=AsyncMock(return_value=bounds), resync=None)
    claim = PartitionClaim(TP_0, "f", 1, "m", OffsetAndMetadata(0), bounds, 1, "", was_reset=False, _partition=partition)
    await processor.claim(claim)


@pytest.mark.parametrize("is_retired", [False, True])
async def test_unsent_records_can_be_read_by_an_older_version_after_the_release(
    redis_client: Redis, names: Names, is_retired: bool
) -> None:
    store = await sealed(redis_client, names)
    context = context_of(redis_client, names, FOLD, TrustedClock(SystemClock()))
    producer = SilentProducer()
    context.producer = cast("Any", producer)
    processor: Processor
    if is_retired:
        processor = RetiredFoldProcessor(store, context)
    else:
        processor = FoldProcessor(shard_of(redis_client, names), decoded_batches_of(FOLD), context)
    await claimed(processor)
    await producer.asked.wait()
    assert is_retired or [(0, [0, 1, 2])] == await entries_of(store)
    await processor.revoke(5.0)

    assert [(0, [0]), (1, [1]), (2, [2])] == await entries_of(store)
    assert "format" not in await meta_of(store)


@pytest.mark.parametrize("script", ["seal", "outbox"])
async def test_older_version_can_read_what_an_unanswered_script_has_left(
    redis_client: Redis, names: Names, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """The reply of *seal* is lost, or that of *outbox* after a claim: this process has no record of the outbox."""
    shard = shard_of(redis_client, names)
    await shard.claim(0, 1)
    await fold_some(shard, [FoldEvent(at, 1_000 + at, b"s%d" % at, {"u": 1}) for at in range(3)])
    real, executed = getattr(shard.store, script), asyncio.Event()

    async def unanswered(*args: Any, **options: Any) -> None:
        await real(*args, **options)
        executed.set()
        await asyncio.sleep(3_600)  # until it is cancelled

    if script == "outbox":
        await shard.seal(2_000, folded_until_ms=None, everything=True)
        shard = shard_of(redis_client, names)
    monkeypatch.setattr(shard.store, script, unanswered)
    call = shard.claim(0, 1) if script == "outbox" else shard.seal(2_000, folded_until_ms=None, everything=True)
    task = asyncio.ensure_future(cast("Any", call))
    await executed.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert [(0, [0, 1, 2])] == await entries_of(shard.store)
    shard.release()
    await shard.make_readable(5.0)

    assert [(0, [0]), (1, [1]), (2, [2])] == await entries_of(shard.store)


async def test_former_owner_leaves_the_outbox_of_the_next_one_alone(redis_client: Redis, names: Names) -> None:
    await sealed(redis_client, names)
    former, following = shard_of(redis_client, names), shard_of(redis_client, names)
    await former.claim(0, 1)
    await following.claim(0, 1)
    former.release()
    await former.make_readable(5.0)

    assert [(0, [0, 1, 2])] == await entries_of(following.store)
    assert 3 == len(following.outbox)


# Packed groups


@pytest.mark.parametrize(("groups", "packed"), [(1, 0), (5, 0), (6, 6)])
async def test_release_unpacks_a_limited_number_of_groups(
    redis_client: Redis, names: Names, monkeypatch: pytest.MonkeyPatch, groups: int, packed: int
) -> None:
    monkeypatch.setattr(sharding, "MOST_UNPACKED", 5)
    shard = shard_of(redis_client, names)
    await shard.claim(0, 1)
    await fold_some(shard, [FoldEvent(at, 1_000 + at, b"s%d" % at, {"u": 1}) for at in range(groups)])
    before = await open_groups(shard.store)
    shard.release()
    await shard.make_readable(5.0)

    assert packed == len(await packed_in(shard.store))
    assert before == await open_groups(shard.store)
    assert ("3" if packed else None) == (await meta_of(shard.store)).get("format")


async def test_release_with_packed_groups_and_unsent_records_leaves_no_format(redis_client: Redis, names: Names) -> None:
    shard = shard_of(redis_client, names)
    await shard.claim(0, 1)
    await fold_some(shard, [FoldEvent(at, 1_000 + at, b"s%d" % at, {"u": 1}) for at in range(3)])
    await shard.seal(2_000, folded_until_ms=None, everything=True)
    await fold_some(shard, [FoldEvent(3, 2_000, b"snew", {"u": 1})])
    shard.release()
    await shard.make_readable(5.0)

    assert [(0, [0]), (1, [1]), (2, [2])] == await entries_of(shard.store)
    assert (set(), {b"snew"}) == (await packed_in(shard.store), set(await open_groups(shard.store)))
    assert ("0", False) == ((meta := await meta_of(shard.store))["lost"], "format" in meta)


async def test_release_removes_the_format_that_a_group_has_left_by_growing_too_large(redis_client: Redis, names: Names) -> None:
    shard = shard_of(redis_client, names)
    await shard.claim(0, 1)
    for at in range(3):
        await fold_some(shard, [FoldEvent(at, 1_000, b"sa", {f"{at}".ljust(190, "_"): 1})])
    found = [(await meta_of(shard.store))["format"], await packed_in(shard.store)]
    shard.release()
    await shard.make_readable(5.0)

    assert ["3", set()] == found
    assert "format" not in await meta_of(shard.store)


async def test_release_without_redis_ends_in_time(redis_client: Redis, names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = shard_of(redis_client, names)
    await shard.claim(0, 1)
    await fold_some(shard, [FoldEvent(0, 1_000, b"sa", {"u": 1})])

    async def no_reply(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(shard.store, "unpack", no_reply)
    shard.release()
    await shard.make_readable(0.05)

    assert {b"sa"} == await packed_in(shard.store)


async def test_release_unpacks_groups_although_the_reply_of_redis_is_late(
    redis_client: Redis, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = shard_of(redis_client, names)
    await shard.claim(0, 1)
    await fold_some(shard, [FoldEvent(0, 1_000, b"sa", {"u": 1})])
    execute: Any = redis_client.execute_command

    async def late(*words: Any, **options: Any) -> Any:
        reply = await execute(*words, **options)
        await asyncio.sleep(5.0)  # longer than the release waits
        return reply

    shard.release()
    with monkeypatch.context() as slow:
        slow.setattr(redis_client, "execute_command", late)
        await shard.make_readable(0.2)

    assert (set(), {b"sa"}) == (await packed_in(shard.store), set(await open_groups(shard.store)))


async def test_former_owner_does_not_unpack_groups_of_the_next_one(redis_client: Redis, names: Names) -> None:
    former, following = shard_of(redis_client, names), shard_of(redis_client, names)
    await former.claim(0, 1)
    await fold_some(former, [FoldEvent(0, 1_000, b"sa", {"u": 1})])
    await following.claim(0, 1)
    former.release()
    await former.make_readable(5.0)

    assert {b"sa"} == await packed_in(following.store)
