"""The pages of a worker, over real sockets, while its main loop runs, hangs or fails."""

from __future__ import annotations

import asyncio
import html
import re
import threading
import urllib.request
from typing import Any, cast

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

import streams_app.health.http
from streams_app import Fold
from streams_app.health.http import ASYNCAPI_PAGE, EVENTS_PAGE, GROUPS_MAX
from streams_app.health.metric_table import METRICS
from streams_app.health.metrics import Metrics
from streams_app.health.status import LIVE_MS, Status
from streams_app.operations.groups import groups_of_worker
from streams_app.settings import Settings
from tests.helpers.manual_clock import ManualClock
from tests.integration.health.asking import FOLD, Start, get

# Metrics


async def test_metrics_page_is_parsed_by_prometheus_and_has_every_metric(start: Start, metrics: Metrics) -> None:
    metrics.resyncs.labels(fold="f", cause="fence").inc()
    async with aiohttp.ClientSession() as session, session.get(f"{start().url}/metrics") as reply:
        text = await reply.text()
        assert reply.status == 200
        assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(text))
    samples = {(sample.name, sample.labels.get("cause")): sample.value for family in families for sample in family.samples}

    assert {metric.name.removesuffix("_total") for metric in METRICS} <= {family.name for family in families}
    assert samples["streams_app_resyncs_total", "fence"] == 1


async def test_unknown_page_is_not_found(start: Start) -> None:
    assert (await get(f"{start().url}/nothing"))[0] == 404


# Index


def links_of(page: str) -> list[str]:
    return re.findall(r'href="([^"]*)"', page)


async def test_index_links_exactly_the_pages_of_this_worker(start: Start, status: Status) -> None:
    url = start().url
    async with aiohttp.ClientSession() as session, session.get(url) as reply:
        bare = await reply.text()
        assert (200, "text/html") == (reply.status, reply.content_type)
    assert ["/health/ready", "/health/live", "/metrics"] == links_of(bare)

    async def provider(*_: Any) -> list[dict[str, Any]]:
        return []

    status.groups_provider = provider
    status.pages |= {EVENTS_PAGE: dict, ASYNCAPI_PAGE: dict}
    links = links_of((await get(url))[1])

    assert ["/health/ready", "/health/live", "/metrics", "/groups", "/asyncapi.json", "/events"] == links
    assert {200} == {(await get(f"{url}{path}"))[0] for path in links}


async def test_index_escapes_its_content(start: Start, status: Status) -> None:
    path = '/"><script>alert(1)</script>&'
    status.pages[path] = dict
    async with aiohttp.ClientSession() as session, session.get(start().url) as reply:
        page, policy = await reply.text(), reply.headers["Content-Security-Policy"]

    assert "<script" not in page
    assert path in map(html.unescape, links_of(page))
    assert policy.startswith("default-src 'none'")


# Health


async def test_worker_without_reasons_is_live_and_ready(start: Start) -> None:
    url = start().url

    assert await get(f"{url}/health/live") == (200, {"live": True})
    assert await get(f"{url}/health/ready") == (200, {"ready": True, "reasons": []})


async def test_ready_page_lists_every_reason(start: Start, status: Status) -> None:
    status.set_not_ready("redis", "Redis is away")
    status.set_not_ready("events-0", "claiming")
    url = start().url

    assert await get(f"{url}/health/ready") == (503, {"ready": False, "reasons": ["Redis is away", "claiming"]})
    assert await get(f"{url}/health/live") == (200, {"live": True})
    status.clear("redis")
    assert await get(f"{url}/health/ready") == (503, {"ready": False, "reasons": ["claiming"]})


async def test_worker_without_a_beat_for_thirty_seconds_is_dead(start: Start, status: Status, clock: ManualClock) -> None:
    url = start().url
    status.beat(clock.monotonic_ms())
    clock.advance_ms(LIVE_MS - 1)
    assert (await get(f"{url}/health/live"))[0] == 200
    clock.advance_ms(1)

    assert await get(f"{url}/health/live") == (503, {"live": False})
    assert await get(f"{url}/health/ready") == (503, {"ready": False, "reasons": ["the main loop hangs"]})
    status.beat(clock.monotonic_ms())
    assert (await get(f"{url}/health/live"))[0] == 200


async def test_health_and_metrics_are_answered_while_the_main_loop_hangs(start: Start) -> None:
    url = start().url
    found: list[int] = []

    def ask() -> None:
        for page in ("/health/live", "/metrics"):
            with urllib.request.urlopen(f"{url}{page}", timeout=60) as reply:
                found.append(reply.status)

    asker = threading.Thread(target=ask)
    asker.start()
    asker.join(120)  # this thread is the main loop's: it hangs here

    assert [200, 200] == found


async def test_ready_worker_shows_remarks(start: Start, status: Status) -> None:
    status.remark("subscriber:ship", "subscriber ship reads no more of orders-3")
    url = start().url

    remarks = {"remarks": ["subscriber ship reads no more of orders-3"]}
    assert await get(f"{url}/health/ready") == (200, {"ready": True, "reasons": []} | remarks)
    status.remark("subscriber:ship", None)
    assert await get(f"{url}/health/ready") == (200, {"ready": True, "reasons": []})


# Events


@pytest.mark.parametrize("page", [EVENTS_PAGE, ASYNCAPI_PAGE])
async def test_catalogue_page_comes_from_its_provider_or_is_not_found(start: Start, status: Status, page: str) -> None:
    url = start().url
    code, answer = await get(f"{url}{page}")
    assert (404, "this worker has no catalogue: events.catalogue names none") == (code, answer["error"])
    status.pages[page] = lambda: {"subscribers": [{"name": "ship"}]}

    assert await get(f"{url}{page}") == (200, {"subscribers": [{"name": "ship"}]})


# Groups


async def test_groups_are_those_of_the_provider(start: Start, status: Status) -> None:
    asked: list[tuple[str | None, int]] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def provider(fold: str | None, limit: int) -> list[dict[str, Any]]:
        asked.append((fold, limit))
        loops.append(asyncio.get_running_loop())
        return [{"group": "anna", "events": 3}]

    status.groups_provider = provider
    url = start().url

    assert await get(f"{url}/groups") == (200, {"groups": [{"group": "anna", "events": 3}]})
    assert (await get(f"{url}/groups?fold=f&limit=7"))[0] == 200
    assert (await get(f"{url}/groups?limit={GROUPS_MAX}"))[0] == 200
    assert [(None, 100), ("f", 7), (None, GROUPS_MAX)] == asked
    assert {asyncio.get_running_loop()} == set(loops)


async def test_groups_of_an_undeclared_fold_are_not_found(start: Start, status: Status) -> None:
    settings = Settings(app_id="a", folds=(Fold(**FOLD),))
    status.groups_provider = lambda fold, limit: groups_of_worker([], settings, cast("Any", None), fold, limit)
    url = start().url

    assert await get(f"{url}/groups?fold=zz") == (404, {"error": "there is no fold 'zz'; declared: f"})
    assert await get(f"{url}/groups?fold=f") == (200, {"groups": []})


async def test_groups_without_a_provider_are_unavailable(start: Start) -> None:
    assert await get(f"{start().url}/groups") == (503, {"error": "the worker is starting"})


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "many", "", "1.5", "%C2%B2", "+5", "9999999999999999999999"])
async def test_invalid_limit_is_rejected(start: Start, status: Status, limit: str) -> None:
    async def provider(*_: Any) -> list[dict[str, Any]]:
        raise AssertionError("asked in spite of it")

    status.groups_provider = provider
    code, body = await get(f"{start().url}/groups?limit={limit}")

    assert code == 400
    assert "1 to 1000" in body["error"]


async def test_leading_zeros_do_not_hide_the_size_of_a_limit(start: Start, status: Status) -> None:
    limits: list[int] = []

    async def provider(_: str | None, limit: int) -> list[dict[str, Any]]:
        limits.append(limit)
        return []

    status.groups_provider = provider
    await get(f"{start().url}/groups?limit=0000000019999")

    assert [] == [limit for limit in limits if limit > GROUPS_MAX]


async def test_groups_of_a_failing_provider_are_unavailable(start: Start, status: Status) -> None:
    async def provider(*_: Any) -> list[dict[str, Any]]:
        raise ConnectionError("Redis is away")

    status.groups_provider = provider
    url = start().url

    assert await get(f"{url}/groups") == (503, {"error": "cannot list groups now: Redis is away"})
    assert (await get(f"{url}/health/live"))[0] == 200


async def test_groups_of_a_hanging_provider_time_out(start: Start, status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_app.health.http, "GROUPS_SECONDS", 0.2)
    cancelled = asyncio.Event()

    async def provider(*_: Any) -> list[dict[str, Any]]:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return []

    status.groups_provider = provider
    code, body = await get(f"{start().url}/groups")

    assert code == 503
    assert "cannot list groups now" in body["error"]
    async with asyncio.timeout(5):
        await cancelled.wait()  # requests to Redis stop


async def test_error_without_a_text_is_shown_by_its_name(start: Start, status: Status) -> None:
    async def provider(*_: Any) -> list[dict[str, Any]]:
        raise TimeoutError

    status.groups_provider = provider

    assert await get(f"{start().url}/groups") == (503, {"error": "cannot list groups now: TimeoutError"})
