"""The removal of a state by ``streams-app reset``, beside workers that own or claim it."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

from streams_app.delivery.scripts import NewerStateError
from streams_app.errors import RESET_FORMAT, TryAgainError
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.store.keys import fold_pattern, shard_keys
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from streams_app.operations import state_removal
from streams_app.operations.state_removal import remove_state
from streams_app.requirements.components import FOLDS
from streams_app.settings import Settings
from tests.conftest import Names, RedisServer
from tests.helpers.folding.scripts import chunk_of, fold

BOUNDS = Bounds(1_000, 3_600_000)


@pytest.fixture
def settings(redis_server: RedisServer, names: Names) -> Settings:
    fold = {"name": "f", "source": "t", "group_key": "g", "changed": "m", "quiet_period": "1s"}
    return Settings.model_validate({"app_id": names.app_id, "redis": {"url": redis_server.url}, "folds": [fold]})


async def claimed(client: Redis, app_id: str, partition: int = 0) -> ShardStore:
    """Return a shard that ``me`` has claimed, with open groups, one of which is named like a key of the shard."""
    store = ShardStore(FoldScripts(client), shard_keys(app_id, "f", "t", partition))
    await store.claim("me", -1, b"eeee", "")
    await fold(
        store, -1, chunk_of([FoldEvent(0, 5_000, b"sa", {"likes": 1}), FoldEvent(1, 5_000, b"sx:meta", {"likes": 1})]), BOUNDS
    )
    return store


async def keys_of(client: Redis, app_id: str) -> list[bytes]:
    return [key async for key in client.scan_iter(match=fold_pattern(app_id, "f"))]


async def test_owner_and_claims_are_rejected_while_their_state_is_removed(
    redis_client: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, unlink = await claimed(redis_client, settings.app_id), state_removal._unlink
    rejected = []

    async def meanwhile(client: Redis, keys: list[bytes]) -> None:
        for attempt in (store.skip("me", 1, 5), store.claim("other", -1, b"eeee", "")):
            with pytest.raises(NewerStateError, match=r"is removing .* run it again") as caught:
                await attempt
            rejected.append(caught.value)
        await unlink(client, keys)

    monkeypatch.setattr(state_removal, "_unlink", meanwhile)
    await remove_state(settings, FOLDS, "f")

    assert [True] * 4 == [error.is_reset for error in rejected]
    assert [] == await keys_of(redis_client, settings.app_id)


async def test_interrupted_removal_leaves_a_closed_state_and_can_be_repeated(
    redis_client: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await claimed(redis_client, settings.app_id)

    async def interrupted(*_: object) -> None:
        raise ConnectionError

    with monkeypatch.context() as patched:
        patched.setattr(state_removal, "_unlink", interrupted)
        with pytest.raises(TryAgainError):
            await remove_state(settings, FOLDS, "f")
    with pytest.raises(NewerStateError):
        await store.claim("other", -1, b"eeee", "")
    closed = await redis_client.hget(store.keys.meta, "format")
    await remove_state(settings, FOLDS, "f")
    left = await keys_of(redis_client, settings.app_id)
    claim = await store.claim("other", -1, b"eeee", "")

    assert (RESET_FORMAT.encode(), []) == (closed, left)
    assert claim is not None
    assert -1 == claim.fence


async def test_state_is_removed_from_a_redis_that_is_full(redis_client: Redis, settings: Settings) -> None:
    await claimed(redis_client, settings.app_id)
    await redis_client.config_set("maxmemory", 1)
    try:
        with pytest.raises(OutOfMemoryError):
            await redis_client.set(f"{{{settings.app_id}/f/t/0}}:v2:more", "")
        await remove_state(settings, FOLDS, "f")
    finally:
        await redis_client.config_set("maxmemory", 0)

    assert [] == await keys_of(redis_client, settings.app_id)


async def test_partition_that_is_claimed_for_the_first_time_during_a_removal_stays(
    redis_client: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await claimed(redis_client, settings.app_id)
    close = state_removal._close

    async def meanwhile(client: Redis, meta: bytes) -> None:
        await close(client, meta)
        await claimed(redis_client, settings.app_id, partition=1)

    monkeypatch.setattr(state_removal, "_close", meanwhile)
    await remove_state(settings, FOLDS, "f")

    tags = {key.partition(b"}")[0].rpartition(b"/")[2] for key in await keys_of(redis_client, settings.app_id)}
    assert {b"1"} == tags
