"""The window and the partitions of a fold in the console: computed as the command does, one at a time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from streams_app.clock import SystemClock
from streams_app.folding.core.event import FoldEvent
from streams_app.settings import Settings
from tests.helpers.cli.commands import FOLD, Place, run
from tests.helpers.console.consoles import RunningConsole, running_console
from tests.helpers.folding.scripts import open_in
from tests.helpers.kafka.topics import create_topics, produce
from tests.helpers.waiting import wait_until

PATH = f"/folds/{FOLD}"


async def events_of(app: Place, count: int) -> None:
    now_ms = SystemClock().now_ms()
    for number in range(count):
        value = json.dumps({"account_id": f"a{number % 3}", "metrics": {"likes": 1}}).encode()
        await produce(
            app.bootstrap, app.topics[0], [(b"a%d" % (number % 3), value)], partition=0, timestamp_ms=now_ms - 60_000 + 700 * number
        )


def config_that_sets_itself(app: Place) -> Path:
    path = Path(app.config())
    rule = 'quiet_period = {auto = "knee", at_least = "1s", at_most = "1h"}'
    path.write_text(path.read_text("utf-8").replace('quiet_period = "1s"', rule), "utf-8")
    return path


async def computed(console: RunningConsole) -> Any:
    async def result() -> Any:
        found = (await console.json(f"{PATH}.json"))["window"]
        return found["progress"] is None and found["computed"]

    return await wait_until(result, 60, "a result")


async def test_window_of_a_day_is_computed_as_by_the_command(app: Place) -> None:
    await create_topics(app.bootstrap, app.topics, partitions=1)
    await events_of(app, 12)
    settings = Settings.load(Path(app.config()), {})
    async with running_console(settings) as console:
        before = (await console.json(f"{PATH}.json"))["window"]
        status, _, headers = await console.post(f"{PATH}/window", headers={"Origin": console.url})
        found = await computed(console)
        text = (await console.get(PATH))[1]
    ran = await asyncio.to_thread(run, "tune", "--json", "--config", app.config())
    expected = json.loads(ran.out)

    assert (None, None) == (before["computed"], before["progress"])
    assert (303, f"{PATH}#window") == (status, headers["Location"])
    assert ("found", 12, expected["recommended"]["why"]) == (found["type"], found["events"], found["why"])
    fields = ("quiet_ms", "ratio", "records", "latency_p99_ms", "peak_open_groups", "redis_bytes")
    assert [{name: one[name] for name in fields} for one in expected["curve"]] == [
        {name: one[name] for name in fields} for one in found["points"]
    ]
    assert [settings.fold(FOLD).default_quiet_period_ms] == [one["quiet_ms"] for one in found["points"] if one["is_present"]]
    assert "The same as <code>streams-app tune --fold" in text


async def test_quiet_period_that_sets_itself_is_shown_in_the_window_and_in_each_partition(app: Place, redis_client: Redis) -> None:
    await create_topics(app.bootstrap, app.topics, partitions=1)
    await events_of(app, 12)
    await open_in(app.names.app_id, FOLD, app.topics[0], redis_client, 0, [FoldEvent(0, 1_000, b"sk", {})])
    path = config_that_sets_itself(app)
    async with running_console(Settings.load(path, {})) as console:
        await console.post(f"{PATH}/window", headers={"Origin": console.url})
        found = await computed(console)
        (row,) = (await console.json(f"{PATH}.json?partitions=yes"))["partitions"]["rows"]
        text = (await console.get(f"{PATH}?partitions=yes"))[1]
    expected = json.loads((await asyncio.to_thread(run, "tune", "--json", "--config", str(path))).out)["auto"]

    assert (expected["records"], expected["ratio"]) == (found["auto"]["records"], found["auto"]["ratio"])
    assert [] == [one for one in found["points"] if one["is_present"]]
    assert (60_000, "knee", None) == (row["auto_quiet"]["quiet_ms"], row["auto_quiet"]["aim"], row["auto_quiet"]["ratio"])
    assert "sets itself <span" in text
    assert "1m at present, set by itself for the knee; nothing is learned yet" in text


async def test_window_without_events_says_why_and_another_can_be_computed_afterwards(app: Place) -> None:
    await create_topics(app.bootstrap, app.topics, partitions=1)
    async with running_console(Settings.load(Path(app.config()), {})) as console:
        for _ in range(2):
            await console.post(f"{PATH}/window")
            found = await computed(console)
        text = (await console.get(PATH))[1]

    assert f"there is no event in {app.topics[0]} since" in found["why"]
    assert "The curve of the last day cannot be read now." in text and "Compute again" in text


async def test_one_window_is_computed_at_a_time_and_no_other_web_site_may_begin_one(app: Place) -> None:
    await create_topics(app.bootstrap, app.topics, partitions=1)
    async with running_console(Settings.load(Path(app.config()), {})) as console:
        foreign = await console.post(f"{PATH}/window", headers={"Origin": "https://example.com"})
        unknown = await console.post("/folds/nothing/window")
        first, second = [(await console.post(f"{PATH}/window"))[0] for _ in range(2)]
        during = (await console.json(f"{PATH}.json"))["window"]["progress"]
        await computed(console)

    assert [403, 404, 303, 409] == [foreign[0], unknown[0], first, second]
    assert FOLD == during["fold"]


async def test_partitions_have_open_groups_and_lag(app: Place, redis_client: Redis) -> None:
    await create_topics(app.bootstrap, app.topics, partitions=2)
    for partition, count in ((0, 5), (1, 2)):
        await produce(app.bootstrap, app.topics[0], [(b"k", b"{}")] * count, partition=partition)
    await open_in(app.names.app_id, FOLD, app.topics[0], redis_client, 0, [FoldEvent(n, 1_000, b"sk%d" % n, {}) for n in range(2)])
    async with running_console(Settings.load(Path(app.config()), {})) as console:
        without = (await console.json(f"{PATH}.json"))["partitions"]
        found = (await console.json(f"{PATH}.json?partitions=yes"))["partitions"]
        text = (await console.get(f"{PATH}?partitions=yes"))[1]

    assert without is None
    assert [(0, 2, 3, True), (1, 0, 2, False)] == [
        (row["partition"], row["open_groups"], row["lag"], row["is_claimed"]) for row in found["rows"]
    ]
    assert "no worker has read it yet" in text
