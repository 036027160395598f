"""A worker process, a hub and an open stream together: what a browser shows when the state or the source is lost."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio

from streams_app.embedded import Valkey
from streams_app.settings import Settings
from tests.helpers.kafka.topics import read_topic
from tests.helpers.live.hubs import Events, RunningHub, running_hub
from tests.helpers.live.watched import COUNT, LIST, Watched
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import FREQUENT_METADATA, LIMIT_SECONDS, Site
from tests.helpers.worker.workers import WorkerProcess

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def watched(site: Site, valkey: Valkey) -> Watched:
    site.redis_url = valkey.url
    return Watched(site)


@pytest.fixture
async def hub(watched: Watched, valkey: Valkey) -> AsyncIterator[RunningHub]:
    views = Settings.load(watched.config(made=COUNT, news=LIST), {}).live
    async with running_hub(watched.site.names.app_id, valkey.url, views) as running:
        yield running


def worker(watched: Watched) -> WorkerProcess:
    return WorkerProcess(watched.site.folder / "streams.toml", watched.site.folder, FREQUENT_METADATA)


async def until(stream: Events, view: str, **expected: Any) -> None:
    async def found() -> bool:
        states = stream.views(view)
        return bool(states) and expected.items() <= states[-1].items()

    try:
        await wait_until(found, LIMIT_SECONDS, f"{view} with {expected}")
    except AssertionError as error:
        raise AssertionError(f"{error}; it was sent {stream.views(view)[-3:]}") from error


async def test_flushall_under_an_open_page_is_marked_and_no_invented_state_is_shown(
    watched: Watched, hub: RunningHub, valkey: Valkey
) -> None:
    await watched.topics(partitions=2)
    with worker(watched):
        await watched.put(*({"project": 7, "id": number, "title": str(number)} for number in range(20)))
        stream = await hub.events("/live/7/events?view=made&view=news")
        await until(stream, "made", state="ok", count=20)
        await until(stream, "news", state="ok", count=20)
        before = {view: len(stream.views(view)) for view in ("made", "news")}
        async with redis.asyncio.Redis.from_url(valkey.url) as client:
            await client.flushall()
        await until(stream, "made", state="reading")
        await until(stream, "made", state="ok", count=20)
        await until(stream, "news", state="ok", count=20)
        await watched.put({"project": 7, "id": 20, "title": "20"})
        await until(stream, "made", state="ok", count=21)
        since = {view: stream.views(view)[count:] for view, count in before.items()}

    assert {"reading", "ok"} <= {state["state"] for state in since["made"]}
    assert all("count" not in state for states in since.values() for state in states if state["state"] == "reading")
    assert {20, 21} == {state["count"] for states in since.values() for state in states if "count" in state}


@pytest.mark.apache
async def test_recreated_source_is_marked_and_then_shown(watched: Watched, hub: RunningHub) -> None:
    await watched.topics()
    with worker(watched):
        await watched.put(*({"project": 7, "id": number, "title": str(number)} for number in range(20)))
        stream = await hub.events("/live/7/events?view=made")
        await until(stream, "made", state="ok", count=20)
        before = len(stream.views("made"))
        await watched.site.recreate("events")
        await watched.put(*({"project": 7, "id": number, "title": "anew"} for number in range(100, 103)))
        await until(stream, "made", state="ok", count=3)
        since = stream.views("made")[before:]

    # It is empty for a moment, and then each of its events comes; what was shown before is marked first, and never ok again.
    assert "ok" != since[0]["state"]
    assert {0, 1, 2, 3} >= {state["count"] for state in since if state["state"] == "ok"}
    assert {20} >= {state["count"] for state in since if state["state"] == "behind"}


async def test_odd_events_of_a_running_worker_are_late_ignored_or_dead_letters(watched: Watched, hub: RunningHub) -> None:
    config = watched.config(made=COUNT | {"remove": {"gone": True}})
    await watched.topics(partitions=1)
    with watched.site.worker(config) as process:
        await watched.shows(config, "made", 0)  # a view that begins later would not read late events at all
        now_ms = int(time.time() * 1000)
        await watched.put({"project": 7, "id": "late"}, timestamp_ms=now_ms - 2 * 3_600_000)
        await watched.put({"project": 7, "id": "to-come"}, timestamp_ms=now_ms + 1_800_000)
        await watched.put({"project": 7, "id": "absent", "gone": True})
        await watched.site.send("events", [(b"7", None), (b"7", b'{"project": 7, "id": "' + b"x" * 600 + b'"}')])
        await watched.put({"project": 7, "id": "last"})
        shown = await watched.shows(config, "made", 2)
        dead_letters = await read_topic(
            watched.site.bootstrap, watched.site.names.topic("dead"), until=lambda found: len(found) >= 1, timeout_seconds=60
        )

        async def counted() -> bool:
            _, text = await process.get("/metrics")
            return all(
                f'streams_app_live_events_total{{result="{result}",view="made"}} 1.0' in text for result in ("late", "refused")
            )

        await wait_until(counted, LIMIT_SECONDS, "late and rejected events are counted")

    assert {"to-come", "last"} == {item.item for item in shown.items}
    assert all(item.time_ms <= int(time.time() * 1000) for item in shown.items)
    assert ["no-item"] == [dict(dead_letter.headers)["reason"].decode() for dead_letter in dead_letters]


async def test_worker_and_hub_started_together_show_no_zero_before_the_first_state(watched: Watched, hub: RunningHub) -> None:
    await watched.topics()
    await watched.put({"project": 7, "id": 1, "title": "one"})
    stream = await hub.events("/live/7/events?view=made")
    with worker(watched):
        await until(stream, "made", state="ok", count=1)

    assert "reading" == stream.views("made")[0]["state"]
    assert {1} == {state["count"] for state in stream.views("made") if "count" in state}
