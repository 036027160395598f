"""What a hub knows of a view on a real Redis, from one poll to the next."""

from __future__ import annotations

import pytest
import redis.asyncio
from redis.exceptions import ResponseError

from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.live.core.operations import Change
from streams_app.live.core.state import BEHIND_MS, ViewState
from streams_app.live.hub.connection import Connection
from streams_app.live.hub.hub import Hub
from streams_app.live.hub.polling import Poller
from streams_app.live.store.view_store import ViewMetadata
from streams_app.settings import LiveView, Settings
from tests.conftest import Names
from tests.helpers.live.hubs import Owner, now_ms
from tests.helpers.manual_clock import ManualClock
from tests.integration.live.hub.views import SUPPORTERS
from tests.integration.live.store.test_scripts import CLOCK_MS, EXPIRY_MS, Shard, put

NEWS = LiveView(name="news", source="t", kind="list", page="a", item="b", expiry="1m", payload=["c"], public=True)


class Polled(Shard):
    """A shard, and what a hub knows of one of its pages."""

    def __init__(self, client: redis.asyncio.Redis, names: Names) -> None:
        super().__init__(client, names)
        self.poller = Poller(names.app_id, [NEWS], client, self.scripts)

    async def poll(self) -> set[tuple[str, str]]:
        return (await self.poller.poll_once({"news": ["p"]}))[1]

    def shown(self) -> ViewState:
        return self.poller.views["news"].state("p", CLOCK_MS)


async def test_each_state_of_one_owner_is_polled(redis_client: redis.asyncio.Redis, names: Names) -> None:
    shard, counts = Polled(redis_client, names), []
    store = await shard.claimed()
    for fence, item in enumerate("abc", 9):
        await store.apply(fence, fence + 1, [Change("p", [], [put(item, 1)])], ViewMetadata())
        counts.append((await shard.poll(), shard.shown().count))

    assert counts == [({("news", "p")}, count) for count in (1, 2, 3)]


async def test_values_whose_reply_was_late_are_as_old_as_their_request(
    redis_client: redis.asyncio.Redis, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, clock = Settings(app_id=names.app_id, live=(SUPPORTERS,)), ManualClock(now_ms())
    hub = Hub(settings, redis_client, clock, Metrics(settings), Status())
    owner = Owner(redis_client, names.app_id, SUPPORTERS)
    await owner.claim()
    poll_once = Poller.poll_once

    async def frozen(poller: Poller, wanted: dict[str, list[str]]) -> tuple[int, set[tuple[str, str]]]:
        found = await poll_once(poller, wanted)
        clock.advance_ms(BEHIND_MS + 1_000)
        return found

    monkeypatch.setattr(Poller, "poll_once", frozen)
    hub.open(connection := Connection("7", [SUPPORTERS]))
    await hub.poll_once()
    (message,) = connection.take()

    assert message.state.state == "behind"


async def test_expiry_of_some_items_is_polled(redis_client: redis.asyncio.Redis, names: Names) -> None:
    shard = Polled(redis_client, names)
    store = await shard.claimed()
    await store.apply(9, 10, [Change("p", [], [put("a", 1), put("b", 2)])], ViewMetadata())
    await shard.poll()
    before = shard.shown()
    await store.expire(10, CLOCK_MS + EXPIRY_MS + 1, moves_clock=True)
    changed = await shard.poll()

    assert (before.count, shard.shown().count, changed) == (2, 1, {("news", "p")})


async def test_changes_missed_by_a_failed_poll_are_requested_once_more(redis_client: redis.asyncio.Redis, names: Names) -> None:
    shard = Polled(redis_client, names)
    items, moved_items = f"{shard.keys.items_prefix}p", f"{shard.keys.items_prefix}elsewhere"
    store = await shard.claimed()
    await store.apply(9, 10, [Change("p", [], [put("a", 1)])], ViewMetadata())
    await shard.poll()
    before = shard.shown()
    await store.apply(10, 11, [Change("p", [], [put("b", 2)])], ViewMetadata())
    await redis_client.rename(items, moved_items)
    await redis_client.set(items, "no sorted set")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await shard.poll()
    failed = shard.shown()
    await redis_client.rename(moved_items, items)
    changed = await shard.poll()

    assert (before.count, failed) == (1, before)
    assert (shard.shown().count, changed) == (2, {("news", "p")})
