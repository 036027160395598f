"""Commands show and change open groups in the same way, whether they are packed or hashes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.store.shard_store import ShardStore
from streams_app.operations.groups import SORTS
from tests.helpers.cli.commands import FOLD, Place, run
from tests.helpers.folding.scripts import open_groups, open_in, packed_in, seal
from tests.helpers.kafka.topics import create_topics, produce
from tests.helpers.waiting import wait_until

BOUNDS = Bounds(1_000, 3_600_000)
EVENTS = [
    FoldEvent(0, 5_000, b"sanna", {"likes": 1}), FoldEvent(1, 5_400, b"sbert", {"likes": 1}),
    FoldEvent(2, 5_600, b"sanna", {"shares": 1}), FoldEvent(3, 5_900, b"s\xc3\xa9t\xc3\xa9", {"a": 1, "b": 2, "\u00e9": 3}),
]  # fmt: skip
FORMS = {"packed": True, "hash": False}


@pytest.fixture
def app(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue("place")
    return found


async def opened(app: Place, client: Redis, form: str) -> ShardStore:
    store = await open_in(app.names.app_id, FOLD, app.topics[0], client, 0, EVENTS, BOUNDS, may_pack=FORMS[form])
    assert len(await packed_in(store)) == (3 if form == "packed" else 0)
    return store


async def keys_of(app: Place, client: Redis) -> list[bytes]:
    return [key async for key in client.scan_iter(match=f"{{{app.names.app_id}/{FOLD}/*")]


@asynccontextmanager
async def owned(store: ShardStore) -> AsyncIterator[None]:
    """Carry out requests for the shard, as its owner does."""

    async def passes() -> None:
        while True:
            await wait_until(lambda: store.redis.exists(store.keys.flush, store.keys.drop), 60, "a request is in Redis")
            await seal(store, 3, 0, BOUNDS)

    owner = asyncio.create_task(passes())
    try:
        yield
    finally:
        owner.cancel()
        await asyncio.gather(owner, return_exceptions=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("sort", "expected"),
    [("quiet", ["bert", "anna", "été"]), ("oldest", ["anna", "bert", "été"]), ("events", ["anna", "bert", "été"]),
     ("largest", ["été", "anna", "bert"])],
)  # fmt: skip
async def test_groups_are_listed_in_each_order(app: Place, redis_client: Redis, form: str, sort: str, expected: list[str]) -> None:
    assert sort in SORTS
    await opened(app, redis_client, form)
    ran = await asyncio.to_thread(run, "groups", "list", "--json", "--sort", sort, "--config", app.config())
    rows: list[dict[str, Any]] = [json.loads(line) for line in ran.out.splitlines()]

    assert (0, expected) == (ran.code, [row["group"] for row in rows]), ran.err
    assert {("anna", 2, 2, 0, 2), ("bert", 1, 1, 1, 1), ("été", 1, 3, 3, 3)} == {
        (row["group"], row["events"], row["names"], row["first_offset"], row["last_offset"]) for row in rows
    }


@pytest.mark.parametrize("form", FORMS)
async def test_group_is_explained_with_its_names(app: Place, redis_client: Redis, form: str) -> None:
    await opened(app, redis_client, form)
    ran = await asyncio.to_thread(run, "groups", "explain", "été", "--json", "--config", app.config())
    (state,) = json.loads(ran.out)["states"]
    planned = await asyncio.to_thread(run, "groups", "drop", "anna", "--config", app.config())

    assert (["a", "b", "é"], 1, 3) == (state["names"], state["open"]["events"], state["open"]["names"])
    assert "2 events" in planned.out and "2 changed names: likes, shares" in planned.out


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("words", "left"),
    [
        (("groups", "flush", "anna"), [b"sbert", "sété".encode()]),
        (("groups", "flush", "--all"), []),
        (("groups", "drop", "anna", "--yes", "--reason", "a loop"), [b"sbert", "sété".encode()]),
        (("forget", "anna", "--yes", "--timeout", "0.1"), [b"sbert", "sété".encode()]),
    ],
    ids=["flush", "flush-all", "drop", "forget"],
)
async def test_command_removes_its_groups_and_no_others(
    app: Place, redis_client: Redis, form: str, words: tuple[str, ...], left: list[bytes]
) -> None:
    await create_topics(app.bootstrap, app.topics, partitions=1)
    await produce(app.bootstrap, app.topics[0], [(b"k", b"{}")] * len(EVENTS))
    store = await opened(app, redis_client, form)
    async with owned(store):
        ran = await asyncio.to_thread(run, *words, "--config", app.config())
    found = await open_groups(store)
    hashes = [key for key in await keys_of(app, redis_client) if b":group:" in key]

    assert 0 == ran.code, ran.err
    assert left == list(found)
    packed = len(left) if form == "packed" else 0
    assert (packed, len(left) - packed) == (len(await packed_in(store)), len(hashes))


@pytest.mark.parametrize("form", FORMS)
async def test_reset_removes_every_key(app: Place, redis_client: Redis, form: str) -> None:
    await create_topics(app.bootstrap, app.topics, partitions=1)
    await opened(app, redis_client, form)
    planned = await asyncio.to_thread(run, "reset", "--fold", FOLD, "--config", app.config())
    ran = await asyncio.to_thread(run, "reset", "--fold", FOLD, "--yes", "--config", app.config())

    assert "3 open groups" in planned.text
    assert 0 == ran.code, ran.text
    assert [] == await keys_of(app, redis_client)
