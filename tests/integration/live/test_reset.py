"""A reset of a live view while a worker keeps it."""

from __future__ import annotations

import asyncio

import redis.asyncio

from streams_app.delivery.scripts import FencedError
from streams_app.finding import Finding, Level
from streams_app.kafka.facts import KafkaFacts
from streams_app.live.core.operations import Change
from streams_app.live.core.state import Item
from streams_app.live.hub.findings import live_findings
from streams_app.live.store.keys import view_keys
from streams_app.live.store.view_store import LiveScripts, ViewMetadata, ViewStart, ViewStore
from streams_app.operations.state_removal import remove_state
from streams_app.requirements.components import LIVE_VIEWS
from streams_app.settings import Settings
from tests.conftest import Names, RedisServer

PAGES, STEP = 1_500, 100
NOW_MS = 1_700_000_000_000


class Owner:
    """Acts as a worker: it applies its log from the beginning whenever its state is gone."""

    def __init__(self, client: redis.asyncio.Redis, app_id: str) -> None:
        self._scripts = LiveScripts(client)
        self._keys = view_keys(app_id, "v", "t", 0)
        self.claims = 0

    async def fill(self) -> None:
        self.claims += 1
        self.store = ViewStore(self._scripts, self._keys, f"owner-{self.claims}", has_data=False, expiry_ms=60_000, keep=100)
        claimed = await self.store.claim("d", "id", 1, begin=ViewStart(-1, NOW_MS, ViewMetadata()))
        assert claimed is not None
        self.fence = claimed.fence
        while self.fence + 1 < PAGES:
            part = range(self.fence + 1, self.fence + 1 + STEP)
            await self.store.apply(
                self.fence, part[-1], [Change(f"p{number}", [], [Item("i", NOW_MS)]) for number in part], ViewMetadata()
            )
            self.fence = part[-1]

    async def run(self, is_over: asyncio.Event) -> None:
        """Run until stopped, and until its state has existed for a while."""
        rounds_since = 0
        while rounds_since < 3:
            rounds_since += is_over.is_set()
            try:
                await self.store.expire(self.fence, NOW_MS, moves_clock=True)
            except FencedError:
                await self._refill()
            await asyncio.sleep(0)

    async def _refill(self) -> None:
        while True:
            try:
                return await self.fill()
            except FencedError:
                continue


async def test_reset_of_a_view_skips_nothing_that_its_worker_rereads(
    redis_client: redis.asyncio.Redis, redis_server: RedisServer, names: Names
) -> None:
    settings = Settings.model_validate({
        "app_id": names.app_id, "redis": {"url": redis_server.url},
        "live": [{"name": "v", "kind": "count", "source": "t", "page": "p", "expiry": "1m", "public": True}],
    })  # fmt: skip
    owner, is_over = Owner(redis_client, names.app_id), asyncio.Event()
    await owner.fill()
    running = asyncio.create_task(owner.run(is_over))
    await remove_state(settings, LIVE_VIEWS, "v")
    is_over.set()
    await running
    shard = view_keys(names.app_id, "v", "t", 0)

    assert owner.claims > 1
    assert (str(PAGES - 1).encode(), PAGES) == (await redis_client.hget(shard.meta, "fence"), await redis_client.hlen(shard.pages))
    assert PAGES == sum([await redis_client.zcard(f"{shard.items_prefix}p{number}") for number in range(PAGES)])


async def test_state_of_a_former_source_is_named_by_check_and_removed_by_reset(
    redis_client: redis.asyncio.Redis, redis_server: RedisServer, names: Names
) -> None:
    settings = Settings.model_validate({
        "app_id": names.app_id, "redis": {"url": redis_server.url}, "kafka": {"bootstrap_servers": "127.0.0.1:1"},
        "live": [{"name": "v", "kind": "count", "source": "new", "page": "p", "expiry": "1m", "public": True}],
    })  # fmt: skip
    scripts = LiveScripts(redis_client)
    for view, topic, partition in (("v", "new", 0), ("v", "old", 0), ("v", "old", 1), ("removed", "t", 0)):
        store = ViewStore(scripts, view_keys(names.app_id, view, topic, partition), "t", has_data=False, expiry_ms=1, keep=1)
        await store.claim("d", "id", 2, begin=ViewStart(-1, NOW_MS, ViewMetadata()))

    def warnings(found: list[Finding]) -> list[Finding]:
        return [one for one in found if one.level is Level.WARNING]

    gone, former = warnings([one async for one in live_findings(settings, KafkaFacts(), redis_client)])
    for view in ("v", "removed"):
        await remove_state(settings, LIVE_VIEWS, view)
    after = warnings([one async for one in live_findings(settings, KafkaFacts(), redis_client)])

    assert gone.text.startswith("Redis holds state of live view removed of topic t: it is not declared any more")
    assert former.text.startswith("Redis holds state of live view v of topic old: its source is new now")
    assert "streams-app reset --live v --yes" in former.advice
    assert [] == after
    assert [] == [key async for key in redis_client.scan_iter(match=f"{{{names.app_id}/*")]


async def test_reset_of_an_unused_view_removes_every_key(
    redis_client: redis.asyncio.Redis, redis_server: RedisServer, names: Names
) -> None:
    settings = Settings.model_validate({
        "app_id": names.app_id, "redis": {"url": redis_server.url},
        "live": [{"name": "other", "kind": "count", "source": "t", "page": "p", "expiry": "1m", "public": True}],
    })  # fmt: skip
    await Owner(redis_client, names.app_id).fill()
    await redis_client.set(f"{{{names.app_id}/live.v/t/1}}:v0:meta", "of a former version")
    await remove_state(settings, LIVE_VIEWS, "v")

    assert [] == [key async for key in redis_client.scan_iter(match=f"{{{names.app_id}/live.v/*")]
