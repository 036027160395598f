"""Fixtures of the tests of folds."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from streams_app.folding.store.shard_store import ShardStore
from tests.helpers.folding.scripts import EPOCH, FormPacker, new_store


@pytest.fixture(params=[False, True], ids=["hashes", "packed"])
def each_form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run a test twice: every group is stored as a hash, and small ones are packed. Return whether they are."""
    monkeypatch.setattr(FormPacker, "stores_packed", request.param)
    return bool(request.param)


@pytest.fixture
def stores_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store small groups packed."""
    monkeypatch.setattr(FormPacker, "stores_packed", True)


@pytest.fixture
async def packed_store(redis_client: Redis, stores_packed: None) -> ShardStore:
    """Return a claimed shard whose small groups are packed."""
    made = new_store(redis_client)
    await made.claim("me", -1, EPOCH, "")
    return made
