"""State in Redis that a newer version has written: no script of this version reads or changes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio

from streams_app.delivery.scripts import NewerStateError
from streams_app.errors import NewerFormatError
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from streams_app.journal.store.journal_store import InitialState, JournalScripts, JournalStore
from streams_app.journal.store.keys import journal_keys
from streams_app.live.store.keys import view_keys
from streams_app.live.store.view_store import LiveScripts, ViewMetadata, ViewReader, ViewStart, ViewStore
from streams_app.operations.groups import open_in_redis
from streams_app.settings import Settings
from streams_app.subscribers.state.keys import SubscriberKeys
from streams_app.subscribers.state.store import SubscriberScripts, SubscriberStore
from tests.conftest import Names, RedisServer

Claim = Callable[[redis.asyncio.Redis, str, str], Awaitable[Any]]
"""Claims a state with an application id and a token."""


async def claim_fold(client: redis.asyncio.Redis, app_id: str, token: str) -> None:
    await ShardStore(FoldScripts(client), shard_keys(app_id, "f", "t", 0)).claim(token, 4, b"eeee", "")


async def claim_subscriber(client: redis.asyncio.Redis, app_id: str, token: str) -> None:
    await SubscriberStore(SubscriberScripts(client), SubscriberKeys(app_id, "ship", "t", 0), token).claim(4)


async def read_position(client: redis.asyncio.Redis, app_id: str, token: str) -> None:
    await SubscriberStore(SubscriberScripts(client), SubscriberKeys(app_id, "ship", "t", 0), token).progress()


async def claim_view(client: redis.asyncio.Redis, app_id: str, token: str) -> None:
    store = ViewStore(LiveScripts(client), view_keys(app_id, "news", "t", 0), token, has_data=True, expiry_ms=1_000, keep=10)
    await store.claim("another definition", "", 1, begin=ViewStart(4, 1, ViewMetadata()))


async def read_view(client: redis.asyncio.Redis, app_id: str, token: str) -> None:
    await ViewReader(client, LiveScripts(client), show=2).poll(view_keys(app_id, "news", "t", 0), {"page": ""})


async def claim_journal(client: redis.asyncio.Redis, app_id: str, token: str) -> None:
    store = JournalStore(JournalScripts(client), journal_keys(app_id, "accounts", "t", 0), token)
    await store.claim("", 1, begin=InitialState(4, 1))


@pytest.mark.parametrize(
    ("claim", "use"),
    [
        pytest.param(claim_fold, claim_fold, id="fold"),
        pytest.param(claim_subscriber, claim_subscriber, id="subscriber"),
        pytest.param(claim_subscriber, read_position, id="position of a subscriber"),
        pytest.param(claim_view, claim_view, id="view"),
        pytest.param(claim_view, read_view, id="page of a view"),
        pytest.param(claim_journal, claim_journal, id="journal"),
    ],
)
async def test_state_of_a_newer_format_is_left_as_it_is(
    redis_client: redis.asyncio.Redis, names: Names, claim: Claim, use: Claim
) -> None:
    await claim(redis_client, names.app_id, "newer")
    (meta,) = [key async for key in redis_client.scan_iter(f"{{{names.app_id}/*:meta")]
    await redis_client.hset(meta, "format", "1")
    await claim(redis_client, names.app_id, "same")
    await redis_client.hset(meta, "format", "99")
    before = await redis_client.hgetall(meta)

    with pytest.raises(NewerStateError, match=r"has format 99, and this version reads formats up to 3") as caught:
        await use(redis_client, names.app_id, "older")
    assert "token" == caught.value.cause
    assert meta.decode() in str(caught.value)
    assert before == await redis_client.hgetall(meta)
    assert b"same" == before[b"token"]


async def test_format_that_is_no_number_is_newer(redis_client: redis.asyncio.Redis, names: Names) -> None:
    await claim_fold(redis_client, names.app_id, "newer")
    await redis_client.hset(shard_keys(names.app_id, "f", "t", 0).meta, "format", "2b")

    with pytest.raises(NewerStateError, match="has format 2b"):
        await claim_fold(redis_client, names.app_id, "older")


async def test_commands_on_groups_refuse_state_of_a_newer_format(
    redis_client: redis.asyncio.Redis, redis_server: RedisServer, names: Names
) -> None:
    await claim_fold(redis_client, names.app_id, "newer")
    await redis_client.hset(shard_keys(names.app_id, "f", "t", 0).meta, mapping={"format": "99", "clock": "0"})
    fold = {"name": "f", "source": "t", "group_key": "a", "changed": "m", "quiet_period": "1s"}
    settings = Settings.model_validate({"app_id": names.app_id, "folds": [fold], "redis": {"url": redis_server.url}})

    with pytest.raises(NewerFormatError, match="the state of fold 'f' in partition 0 has format 99"):
        await open_in_redis(settings, "f")
