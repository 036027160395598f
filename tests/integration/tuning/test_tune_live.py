"""``streams-app tune --live`` with a worker, and without one."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

import pytest

from streams_app.embedded.ports import free_port
from tests.helpers.cli.commands import Place, Ran, run
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site, metric, send_at
from tests.helpers.worker.workers import WorkerProcess

EVENTS = 2_000
HOUR_MS = 3_600_000


def events_of(begin_ms: int) -> list[tuple[str, int, int]]:
    chosen = random.Random(5)
    return [(f"account_{int(80 * chosen.random() ** 2)}", begin_ms + number * 2_000, number) for number in range(EVENTS)]


def records(events: list[tuple[str, int, int]], quiet_ms: int) -> int:
    """Count records, one event at a time: a group, and each longer gap, is one more record."""
    last: dict[str, int] = {}
    count = 0
    for group, at_ms, _ in events:
        count += group not in last or at_ms - last[group] > quiet_ms
        last[group] = at_ms
    return count


@pytest.mark.long
async def test_curve_of_a_running_worker_matches_its_topic(site: Site) -> None:
    await site.topics("events", "folded", "empty", "none", "events.dead", "none.dead")
    events = events_of(int(time.time() * 1000) - 5 * HOUR_MS)
    await send_at(site, "events", events)
    config = site.config(site.fold("folded", "events", quiet_period="1m") + site.fold("empty", "none"))
    port = free_port()
    environment: dict[str, Any] = {"STREAMS_APP_HTTP_PORT": str(port)}

    async def live(*options: str, fold: str = "folded") -> Ran:
        return await asyncio.to_thread(run, "tune", "--live", "--fold", fold, "--config", str(config), *options, **environment)

    with WorkerProcess(config, site.folder, environment) as worker:
        await worker.wait_ready()
        await wait_until(
            lambda: metric(worker, "streams_app_events_folded_total") == EVENTS, LIMIT_SECONDS, "all events are folded"
        )
        output = json.loads((await live("--json", "--target-ratio", "0.5")).out)
        table = await live()
        two = await live("--url", f"127.0.0.1:{port}", "--url", "127.0.0.1:1", "--windows", "90s", "--json")
        short = await live("--windows", "500ms,1m")
        nothing = await live(fold="empty")
        by_event = 'quiet_period = {field = "wait", default = "1m", at_most = "1h"}\nleading = true'
        site.config(site.fold("folded", "events", quiet_period="1m").replace('quiet_period = "1m"', by_event))
        asked = await live()
        site.config(site.fold("folded", "events", quiet_period="1m") + site.fold("empty", "none"))
    gone = await live()

    assert [records(events, point["quiet_ms"]) for point in output["curve"]] == [point["records"] for point in output["curve"]]
    assert (EVENTS, len({group for group, _, _ in events}), None) == (output["events"], output["groups"], output["sample"])
    assert 60_000 in [point["quiet_ms"] for point in output["curve"]]
    reached = [point["quiet_ms"] for point in output["curve"] if point["ratio"] >= 0.5]
    assert reached[0] == output["recommended"]["quiet_ms"]

    assert table.code == 0, table.err
    assert max(map(len, table.out.splitlines()[1:])) <= 80
    assert "recommended: quiet_period" in table.out
    assert f"by the worker at http://127.0.0.1:{port} alone" in table.err

    assert 0 == asked.code, asked.err
    assert table.out.splitlines()[2:10] == asked.out.splitlines()[2:10]
    assert "computed as if X were the quiet period after every event" in asked.err
    assert "with leading = true, each record of several events is two records" in asked.err

    assert "127.0.0.1:1 does not answer (connection refused); what it has folded is missing" in two.err
    assert "90s lies between two bounds of the histogram" in two.err
    assert (1, 1, 75) == (short.code, nothing.code, gone.code)
    assert "distinguish gaps from 1s to 1d" in short.err
    assert "no event of fold 'empty' was folded since the workers started" in nothing.err
    assert f"no worker answers: http://127.0.0.1:{port} does not answer" in gone.err


async def test_error_explains_how_to_name_a_worker_if_none_is_found(away: Place) -> None:
    ran = await asyncio.to_thread(run, "tune", "--live", "--config", away.config())

    assert 1 == ran.code
    assert "http.port is 0: name the workers with --url" in ran.err
