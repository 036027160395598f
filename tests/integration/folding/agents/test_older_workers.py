"""Workers store records and groups one by one while workers of an older version own shards of the application."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
import redis.exceptions
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from streams_app import Fold
from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.folding.agents.context import ABSENT_MS, CHECK_MS, WATCH_MS, OlderWorkers
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from streams_app.settings import Settings
from tests.conftest import Names
from tests.helpers.folding.scripts import entries_of, meta_of, open_groups, packed_in
from tests.helpers.folding.shards import fold_some
from tests.helpers.manual_clock import ManualClock

FOLDS = [
    Fold(name=name, source=source, group_key="a", changed="m", quiet_period=timedelta(seconds=1), backlog="sessions")
    for name, source in (("f", "t"), ("g", "t"), ("h", "other"))
]


def shard_of(client: Redis, names: Names, fold: Fold, partition: int = 0) -> Shard:
    store = ShardStore(FoldScripts(client), shard_keys(names.app_id, fold.name, fold.source, partition))
    return Shard(fold, TP(fold.source, partition), store)


class Application:
    """An application whose workers have claimed the first two partitions of two sources."""

    def __init__(self, client: Redis, names: Names) -> None:
        self.clock = ManualClock()
        settings = Settings(app_id=names.app_id, folds=tuple(FOLDS))
        self.older = OlderWorkers(FoldScripts(client), settings, TrustedClock(self.clock))
        self.shards = [shard_of(client, names, fold, partition) for fold in FOLDS for partition in range(2)]

    async def have_older(self) -> bool:
        """Return whether there are older workers, once the next check is due."""
        self.clock.advance_ms(CHECK_MS)
        return await self.older.exist()

    async def have_older_after_absence(self) -> bool:
        """Return whether there are older workers, after none was found for as long as one may own nothing."""
        for _ in range(ABSENT_MS // CHECK_MS):
            await self.have_older()
        return await self.have_older()

    async def claim(self, shard: Shard, *, is_older: bool) -> None:
        await shard.claim(0, 2)
        if is_older:  # it does not know the second field
            await shard.store.redis.hset(shard.store.keys.meta, "reads_packed", "token of the former owner")


@pytest.fixture
def application(redis_client: Redis, names: Names) -> Application:
    return Application(redis_client, names)


@pytest.mark.parametrize("number", range(6))
async def test_older_worker_is_found_by_any_shard_until_a_newer_one_claims_it(
    application: Application, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "streams_app.folding.agents.context")
    found = []
    for source in ("t", "other"):
        application.older.expect(source, 2)
    for shard in application.shards:
        await application.claim(shard, is_older=False)
    found.append(await application.have_older())
    await application.claim(application.shards[number], is_older=True)
    found.append(await application.have_older())
    await application.claim(application.shards[number], is_older=False)
    found.append(await application.have_older_after_absence())

    assert [False, True, False] == found
    assert [
        "an older version runs, records and groups are stored one by one",
        "no older version runs any more",
    ] == caplog.messages


async def test_shards_without_state_belong_to_no_older_worker(application: Application) -> None:
    application.older.expect("t", 2)

    assert not await application.have_older()


async def test_shards_are_checked_at_most_twice_a_second_and_at_once_for_a_new_source(application: Application) -> None:
    application.older.expect("t", 2)
    await application.have_older()
    await application.claim(application.shards[0], is_older=True)
    assert not await application.older.exist()
    application.older.expect("t", 2)
    assert not await application.older.exist()
    application.older.expect("other", 2)

    assert await application.older.exist()


async def test_shards_are_checked_while_an_older_worker_is_found_and_for_a_while_after_each_claim(application: Application) -> None:
    application.older.expect("t", 2)
    await application.claim(application.shards[0], is_older=True)
    found = [await application.have_older()]
    application.clock.advance_ms(WATCH_MS)
    found.append(await application.have_older())
    await application.claim(application.shards[0], is_older=False)
    found.append(await application.have_older_after_absence())
    await application.claim(application.shards[0], is_older=True)
    found.append(await application.have_older())  # no claim of this worker: nobody has joined
    application.older.expect("t", 2)
    found.append(await application.have_older())

    assert [True, True, False, False, True] == found


async def test_older_worker_that_owns_nothing_for_a_moment_is_still_there(
    application: Application, caplog: pytest.LogCaptureFixture
) -> None:
    """So it is in the middle of a rebalance, or while it is replaced by another one."""
    caplog.set_level("INFO", "streams_app.folding.agents.context")
    application.older.expect("t", 2)
    found = []
    for number in (0, 1):  # the second time, the older worker gets another partition
        await application.claim(application.shards[number], is_older=True)
        found.append(await application.have_older())
        await application.claim(application.shards[number], is_older=False)
        found += [await application.have_older() for _ in range(ABSENT_MS // CHECK_MS)]
    last = await application.have_older()

    assert ([True] * (2 * ABSENT_MS // CHECK_MS + 2), False) == (found, last)
    assert [
        "an older version runs, records and groups are stored one by one",
        "no older version runs any more",
    ] == caplog.messages


async def test_absence_of_older_workers_is_noticed_although_no_worker_claims_anything(application: Application) -> None:
    """The time for which shards are checked after a claim has passed before the older worker is gone."""
    application.older.expect("t", 2)
    await application.claim(application.shards[0], is_older=True)
    application.clock.advance_ms(WATCH_MS)
    found = [await application.have_older()]
    await application.claim(application.shards[0], is_older=False)
    found += [await application.have_older() for _ in range(ABSENT_MS // CHECK_MS + 1)]

    assert [*[True] * (ABSENT_MS // CHECK_MS + 1), False] == found


async def test_older_worker_is_still_there_after_a_long_rebalance_without_checks(application: Application) -> None:
    application.older.expect("t", 2)
    await application.claim(application.shards[0], is_older=True)
    found = [await application.have_older()]
    application.clock.advance_ms(10 * ABSENT_MS)  # nobody folds, so nobody checks
    await application.claim(application.shards[0], is_older=False)
    application.older.expect("t", 2)
    found.append(await application.older.exist())
    await application.claim(application.shards[1], is_older=True)
    found.append(await application.have_older())

    assert [True, True, True] == found


async def test_shards_are_checked_until_a_check_has_succeeded(application: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unavailable() -> bool:
        raise redis.exceptions.ConnectionError

    application.older.expect("t", 2)
    with monkeypatch.context() as outage:
        outage.setattr(application.older, "_own_shards", unavailable)
        with pytest.raises(redis.exceptions.ConnectionError):
            await application.have_older()
    application.clock.advance_ms(WATCH_MS)

    assert not await application.have_older()


def events(begin: int, stamp: int) -> list[FoldEvent]:
    return [FoldEvent(begin + at, stamp + at, b"s%d" % (at % 5), {f"n{at}": 1}) for at in range(10)]


async def test_records_of_sessions_and_due_groups_become_entries_that_an_older_worker_reads(
    redis_client: Redis, names: Names
) -> None:
    shards = [shard_of(redis_client, names, fold) for fold in FOLDS[:2]]
    found: list[Any] = []
    for shard in shards:
        await shard.claim(0, 1)
        await shard.store_singly(singly=shard is shards[0])
        await fold_some(shard, events(0, 1_000) + events(10, 4_000) + events(20, 7_000))
        await shard.seal(10_000, folded_until_ms=None, everything=True)
        found.append((await entries_of(shard.store), (await meta_of(shard.store)).get("format"), shard.outbox.entries))
    (singly, no_format, count), (blocks, number, block_count) = found

    assert (None, 15, "2") == (no_format, count, number)
    assert not await redis_client.exists(shards[0].store.keys.open)
    assert [(offset, [offset]) for offset, _ in singly] == singly
    assert sorted(offset for offset, _ in singly) == sorted(offset for _, offsets in blocks for offset in offsets)
    assert len(blocks) == block_count < 15
    assert list(shards[0].outbox) == sorted(shards[1].outbox, key=list(shards[0].outbox).index)
    sent = shards[0].outbox.first(7)
    await shards[0].finish(sent)
    assert (8, 8) == (len(shards[0].outbox), len(await entries_of(shards[0].store)))


async def test_records_that_wait_are_split_once_an_older_worker_is_there(redis_client: Redis, names: Names) -> None:
    shard = shard_of(redis_client, names, FOLDS[0])
    await shard.claim(0, 1)
    await fold_some(shard, events(0, 1_000))
    await shard.seal(10_000, folded_until_ms=None, everything=True)
    waiting = list(shard.outbox)
    assert [(0, [0, 1, 2, 3, 4])] == await entries_of(shard.store)
    await shard.store_singly(singly=True)

    assert [(offset, [offset]) for offset in range(5)] == await entries_of(shard.store)
    assert "format" not in await meta_of(shard.store)
    assert (waiting, 5, True) == (list(shard.outbox), shard.outbox.entries, shard.outbox.is_exact)
    await shard.finish(shard.outbox.first(3))
    assert [(3, [3]), (4, [4])] == await entries_of(shard.store)


@pytest.mark.parametrize("has_run", [False, True])
async def test_records_that_could_not_be_split_leave_redis_nevertheless(redis_client: Redis, names: Names, has_run: bool) -> None:
    """The script may have run although there is no reply."""
    shard = shard_of(redis_client, names, FOLDS[0])
    await shard.claim(0, 1)
    await fold_some(shard, events(0, 1_000))
    await shard.seal(10_000, folded_until_ms=None, everything=True)
    split = shard.store.split

    async def fails(token: str) -> None:
        if has_run:
            await split(token)
        raise RedisConnectionError("no reply")

    with patch.object(shard.store, "split", fails), pytest.raises(RedisConnectionError):
        await shard.store_singly(singly=True)
    while len(shard.outbox):
        await shard.finish(shard.outbox.first(100))

    assert [] == await entries_of(shard.store)


# Packed groups


def fewer_events(begin: int) -> list[FoldEvent]:
    """Return events within one quiet period, of five groups."""
    return [event._replace(timestamp_ms=1_000) for event in events(begin, 0)]


async def test_packed_groups_become_hashes_once_while_an_older_worker_is_there(redis_client: Redis, names: Names) -> None:
    shard = shard_of(redis_client, names, FOLDS[0])
    await shard.claim(0, 1)
    found = []
    with patch.object(shard.store, "unpack", wraps=shard.store.unpack) as unpack:
        for begin, singly in enumerate([False, False, True, True, True, False, False, True, True]):
            await shard.store_singly(singly=singly)
            await fold_some(shard, fewer_events(10 * begin))
            found.append((singly, len(await packed_in(shard.store)), "format" in await meta_of(shard.store), unpack.call_count))
    stored = await open_groups(shard.store)

    assert [
        (False, 5, True, 0), (False, 5, True, 0), (True, 0, False, 1), (True, 0, False, 1), (True, 0, False, 1),
        (False, 0, False, 1), (False, 0, False, 1), (True, 0, False, 2), (True, 0, False, 2),
    ] == found  # fmt: skip
    assert [18] * 5 == [content.numbers.events for content in stored.values()]


async def test_groups_that_are_packed_after_an_older_worker_has_left_are_unpacked_for_the_next(
    redis_client: Redis, names: Names
) -> None:
    shard = shard_of(redis_client, names, FOLDS[0])
    await shard.claim(0, 1)
    found = []
    for begin, singly in enumerate([True, False, True]):
        await shard.store_singly(singly=singly)
        found.append(len(await packed_in(shard.store)))
        new = [event._replace(group=b"s%d-%d" % (begin, event.offset)) for event in fewer_events(10 * begin)]
        await fold_some(shard, new)
        found.append(len(await packed_in(shard.store)))

    assert [0, 0, 0, 10, 0, 0] == found
    assert 30 == len(await open_groups(shard.store))


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize("script", ["unpack", "split"])
async def test_groups_are_unpacked_again_after_an_error_of_redis(
    redis_client: Redis, names: Names, script: str, *, has_run: bool
) -> None:
    shard = shard_of(redis_client, names, FOLDS[0])
    await shard.claim(0, 1)
    await fold_some(shard, fewer_events(0))
    original = getattr(shard.store, script)

    async def fails(token: str) -> None:
        if has_run:
            await original(token)
        raise RedisConnectionError("no reply")

    with patch.object(shard.store, script, fails), pytest.raises(RedisConnectionError):
        await shard.store_singly(singly=True)
    with patch.object(shard.store, "unpack", wraps=shard.store.unpack) as unpack:
        await shard.store_singly(singly=True)
        await shard.store_singly(singly=True)

    assert 1 == unpack.call_count
    assert (set(), 5) == (await packed_in(shard.store), len(await open_groups(shard.store)))
    assert "format" not in await meta_of(shard.store)


async def test_groups_of_a_former_owner_are_unpacked_after_the_claim(redis_client: Redis, names: Names) -> None:
    shard = shard_of(redis_client, names, FOLDS[0])
    await shard.claim(0, 1)
    await shard.store_singly(singly=True)
    other = shard_of(redis_client, names, FOLDS[0])
    await other.claim(0, 1)
    await fold_some(other, fewer_events(0))
    await shard.claim(0, 1)
    await shard.store_singly(singly=True)

    assert (set(), 5) == (await packed_in(shard.store), len(await open_groups(shard.store)))
