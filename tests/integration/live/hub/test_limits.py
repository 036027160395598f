"""The load of many clients on the hub, and how the hub ends."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest
import redis.asyncio

from tests.conftest import Names
from tests.helpers.live.hubs import LIMIT_SECONDS, Owner
from tests.helpers.waiting import wait_until
from tests.integration.health.test_http_connections import HALF, clients, is_closed
from tests.integration.live.hub.views import SUPPORTERS, VISITORS, Start


async def test_full_server_says_when_to_reconnect(start: Start) -> None:
    async with start(VISITORS, connections=1) as hub:
        page = await hub.events("/live/7/events?view=visitors")
        await page.until("visitors", count=1)
        waits = set()
        for _ in range(30):
            async with hub.session.get(hub.url + "/live/7/events?view=visitors") as response:
                assert 503 == response.status
                waits.add(int(response.headers["Retry-After"]))

    assert len(waits) > 1
    assert waits <= set(range(1, 11))


@pytest.mark.parametrize(
    "sent", [b"", HALF, b"GET /live.js HTTP/1.1\r\nHost: x\r\n\r\n"], ids=["nothing", "half a request", "one request"]
)
async def test_idle_connection_is_closed_and_an_open_page_is_not(start: Start, sent: bytes) -> None:
    async with start(VISITORS) as hub:
        hub.server.sockets.request_seconds = hub.server.sockets.idle_seconds = 0.25
        page = await hub.events("/live/7/events?view=visitors")
        async with clients(urlsplit(hub.url).port, 3, sent) as silent:
            await wait_until(lambda: all(map(is_closed, silent)), LIMIT_SECONDS, "the connections are closed")
        beats = page.names().count("beat")
        await wait_until(lambda: page.names().count("beat") > beats + 1, LIMIT_SECONDS, "the open page hears beats")

        assert not page.is_over
        assert 1 == len(hub.server.sockets)


async def test_any_number_of_clients_ends_no_open_page(start: Start) -> None:
    async with start(VISITORS, connections=2) as hub:
        page = await hub.events("/live/7/events?view=visitors")
        await page.until("visitors", count=1)
        async with clients(urlsplit(hub.url).port, 3 * hub.server.sockets.limit, HALF):
            other = await hub.events("/live/7/events?view=visitors")
            await other.until("visitors", count=2)
            await page.until("visitors", count=2)

            assert len(hub.server.sockets) <= hub.server.sockets.limit


async def test_shutdown_sends_bye_and_spreads_the_reconnections(start: Start) -> None:
    async with start(VISITORS) as hub:
        pages = [await hub.events("/live/7/events?view=visitors") for _ in range(3)]
        for page in pages:
            await page.until("visitors", state="ok")
        await hub.server.end()
        await wait_until(lambda: all(page.is_over for page in pages), LIMIT_SECONDS, "all streams end")

    assert ["bye"] * 3 == [page.names()[-1] for page in pages]


async def test_simultaneous_arrivals_share_few_polls(start: Start, redis_client: redis.asyncio.Redis, names: Names) -> None:
    owner = Owner(redis_client, names.app_id, SUPPORTERS)
    await owner.claim()
    async with start(SUPPORTERS, interval="10s") as hub:
        await hub.json("/live/7?view=supporters")
        polls = hub.metrics.live_look_seconds._buckets
        before = sum(bucket.get() for bucket in polls)
        await asyncio.gather(*(hub.json(f"/live/{page}?view=supporters") for page in range(100)))
        made = sum(bucket.get() for bucket in polls) - before

    assert made < 20
