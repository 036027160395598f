"""Live views kept by real worker processes, through faults of the processes and of Redis."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from functools import partial

import pytest
import redis.asyncio
from aiokafka import TopicPartition
from aiokafka.admin import NewPartitions, RecordsToDelete

from tests.helpers.cli.commands import run
from tests.helpers.kafka.topics import admin_of, create_topics, delete_topic, read_topic
from tests.helpers.live.watched import COUNT, LIST, Watched
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import Site, metric

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def watched(site: Site) -> Watched:
    return Watched(site)


async def test_page_follows_changes_and_expiry(watched: Watched) -> None:
    config = watched.config(
        made=COUNT | {"only": {"@type": "made"}, "remove": {"@type": "gone"}}, short=COUNT | {"expiry": "3s"}, news=LIST
    )  # fmt: skip
    await watched.topics()
    with watched.site.worker(config) as worker:
        await watched.shows(config, "short", 0)  # otherwise events may be older than its range before the worker begins
        await watched.put({"project": 7, "id": 1, "title": "one"}, {"project": "7", "id": 2}, headers=[("ce_type", b"made")])
        made = await watched.shows(config, "made", 2)
        news = await watched.shows(config, "news", 2)
        await watched.put({"project": 7, "id": 2}, headers=[("ce_type", b"gone")])
        left = await watched.shows(config, "made", 1)
        # By then both existed and have left: a command that looks for them may come too late.
        await wait_until(lambda: metric(worker, "streams_app_live_expired_total") >= 2, 60, "both of the short view have expired")
        await watched.shows(config, "short", 0)

    assert {b'{"title":"one"}', b'{"title":null}'} == {item.payload for item in news.state.items or ()}
    assert ({"1", "2"}, ["1"]) == ({item.item for item in made.items}, [item.item for item in left.items])


async def test_repeated_event_counts_once_and_prolongs_its_item(watched: Watched) -> None:
    config = watched.config(made=COUNT)
    await watched.topics()
    first_ms = int(time.time() * 1000) - 60_000
    with watched.site.worker(config):
        await watched.put({"project": 7, "id": 1}, timestamp_ms=first_ms)
        await watched.shows(config, "made", 1)
        await watched.put({"project": 7, "id": 1}, {"project": 7, "id": 2}, timestamp_ms=first_ms + 9_000)
        found = await watched.shows(config, "made", 2)

    assert {first_ms + 9_000} == {item.time_ms for item in found.items}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_next_worker_resumes_after_an_interruption(watched: Watched, how: signal.Signals) -> None:
    config = watched.config(made=COUNT)
    await watched.topics(partitions=2)
    with watched.site.worker(config) as first:
        await watched.put(*({"project": 7, "id": number} for number in range(20)))
        await watched.shows(config, "made", 20)
        os.kill(first.pid, how)
        await watched.put(*({"project": 7, "id": number} for number in range(10, 30)))
        with watched.site.worker(config):
            await watched.shows(config, "made", 30)
            if how == signal.SIGSTOP:
                os.kill(first.pid, signal.SIGCONT)
            await watched.put({"project": 7, "id": 30})
            await watched.shows(config, "made", 31)


async def test_view_is_behind_after_its_worker_stopped_and_reading_before_the_first_one(watched: Watched) -> None:
    config = watched.config(made=COUNT)
    await watched.topics()
    before = await watched.page(config, "made")
    with watched.site.worker(config):
        await watched.put({"project": 7, "id": 1})
        await watched.shows(config, "made", 1)
    found = await watched.has_state(config, "made", "behind")

    assert ("reading", None) == (before.state.state, before.state.count)
    assert "no worker has read its source yet" in before.why
    assert (1, True) == (found.state.count, "no worker runs" in found.why)


async def test_wiped_redis_is_read_from_kafka_below_the_commit(watched: Watched, redis_client: redis.asyncio.Redis) -> None:
    config = watched.config(made=COUNT)
    await watched.topics()
    with watched.site.worker(config):
        await watched.put(*({"project": 7, "id": number} for number in range(20)))
        await watched.shows(config, "made", 20)
        for key in [key async for key in redis_client.scan_iter(f"{{{watched.site.names.app_id}/*")]:
            await redis_client.delete(key)
        await watched.shows(config, "made", 20)


async def test_rolled_back_redis_is_detected_while_idle(watched: Watched, redis_client: redis.asyncio.Redis) -> None:
    config = watched.config(made=COUNT)
    await watched.topics()
    with watched.site.worker(config):
        await watched.put({"project": 7, "id": 1})
        await watched.shows(config, "made", 1)
        images = {
            key: await redis_client.dump(key) or b""
            for key in [key async for key in redis_client.scan_iter(f"{{{watched.site.names.app_id}/*")]
        }
        await watched.put({"project": 7, "id": 2})
        await watched.shows(config, "made", 2)
        for key, image in images.items():
            await redis_client.restore(key, 0, image, replace=True)
        await watched.shows(config, "made", 2)


async def test_changed_definition_is_read_from_kafka(watched: Watched) -> None:
    short, long = watched.config(made=COUNT | {"expiry": "10m"}), watched.config("long.toml", made=COUNT | {"expiry": "2h"})
    await watched.topics()
    await watched.put({"project": 7, "id": 1}, timestamp_ms=int(time.time() * 1000) - 3_600_000)
    await watched.put({"project": 7, "id": 2})
    with watched.site.worker(short):
        await watched.shows(short, "made", 1)
    with watched.site.worker(long):
        await watched.shows(long, "made", 2)


@pytest.mark.apache
async def test_added_partitions_are_shown_too(watched: Watched) -> None:
    config = watched.config(made=COUNT | {"item": ""})
    await watched.topics(partitions=1)
    with watched.site.worker(config):
        await watched.put({"project": 7})
        await watched.shows(config, "made", 1)
        async with admin_of(watched.site.bootstrap) as admin:
            await admin.create_partitions({watched.source: NewPartitions(3)})
        for partition in (1, 2):
            await watched.put({"project": 7}, partition=partition)
        await watched.shows(config, "made", 3)


async def test_worker_with_missing_topics_does_not_start_and_names_them(watched: Watched) -> None:
    config = watched.config(made=COUNT)
    with watched.site.worker(config) as worker:
        code = await worker.wait_exit(60)

    assert 1 == code
    assert f"topic '{watched.source}' (source of made) does not exist" in worker.log()
    assert "streams-app topics create" in worker.log()


async def test_reset_view_is_reread_from_kafka_by_running_workers(watched: Watched) -> None:
    config = watched.config(made=COUNT)
    await watched.topics()
    with watched.site.worker(config):
        await watched.put(*({"project": 7, "id": number} for number in range(5)))
        await watched.shows(config, "made", 5)
        unknown = await asyncio.to_thread(run, "reset", "--live", "made*", "--config", str(config))
        planned = await asyncio.to_thread(run, "reset", "--live", "made", "--config", str(config))
        done = await asyncio.to_thread(run, "reset", "--live", "made", "--yes", "--config", str(config))
        await watched.shows(config, "made", 5)

    assert (1, 0, 0) == (unknown.code, planned.code, done.code)
    assert "'made*' is not the name of a live view" in unknown.err
    assert "nothing was changed; --yes does it" in planned.out
    assert "removed" in done.out


async def test_unusable_record_is_a_dead_letter_and_stops_nothing(watched: Watched) -> None:
    config = watched.config(made=COUNT)
    await watched.topics(partitions=1)
    values = [b"{", b"[1]", b"{}", b'{"project": 7}', None, b'{"project": 7, "id": 1}']
    await watched.site.send("events", [(b"k", value) for value in values])
    with watched.site.worker(config):
        await watched.shows(config, "made", 1)
    dead_letters = await read_topic(
        watched.site.bootstrap, watched.site.names.topic("dead"), until=lambda found: len(found) >= 4, timeout_seconds=60
    )
    headers = [dict(dead_letter.headers) for dead_letter in dead_letters]
    listed = await asyncio.to_thread(run, "dead-letters", "list", "--view", "made", "--config", str(config))
    none = await asyncio.to_thread(run, "dead-letters", "list", "--view", "made", "--key", "other", "--config", str(config))
    replayed = await asyncio.to_thread(run, "dead-letters", "replay", "--view", "made", "--config", str(config))

    assert (0, 4) == (listed.code, sum(f" {watched.source}:0:" in line for line in listed.out.splitlines())), listed
    assert "none of the dead letters of live view made fits --key" in none.out
    assert (1, True) == (replayed.code, "what a live view rejects cannot be replayed" in replayed.err)
    assert ["no-item", "no-page", "not-an-object", "not-json"] == sorted(one["reason"].decode() for one in headers)
    assert {(b"made", watched.source.encode())} == {(one["view"], one["source-topic"]) for one in headers}
    assert set(values[:4]) == {dead_letter.value for dead_letter in dead_letters}


async def test_page_is_printed_by_the_show_command(watched: Watched) -> None:
    config = watched.config(made=COUNT | {"remove": {"gone": [True]}}, news=LIST)
    await watched.topics()
    with watched.site.worker(config):
        await watched.put({"project": 7, "id": "n1", "title": "Hello"})
        await watched.shows(config, "made", 1)
        await watched.shows(config, "news", 1)
        shown = await asyncio.to_thread(run, "live", "show", "7", "--config", str(config))
        unknown = await asyncio.to_thread(run, "live", "show", "7", "--view", "nws", "--config", str(config))
        nonsense = await asyncio.to_thread(run, "live", "show", "nonsense", "--view", "made", "--config", str(config))
        await watched.put({"project": 8, "id": "n1", "gone": True})
        emptied = await asyncio.to_thread(run, "live", "show", "8", "--view", "made", "--config", str(config))
        offline = partial(run, STREAMS_APP_KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1")
        away = await asyncio.to_thread(offline, "live", "show", "8", "--view", "made", "--config", str(config))

    assert 0 == shown.code
    assert "made (count): ok, 1 item" in shown.out
    assert re.search(r'^  n1  leaves in 59 min .*"title":"Hello"', shown.out, re.MULTILINE)
    assert "there is no live view 'nws', did you mean 'news'?" in unknown.err
    assert [0, 0, 0] == [ran.code for ran in (nonsense, emptied, away)]
    assert f"no such page was ever seen: {watched.source} has 1 record, none of this page" in nonsense.out
    assert "empty: the newest record of this page is of 20" in emptied.out
    assert "whether such a page was ever seen is not known: " in away.out


@pytest.mark.apache
async def test_view_overtaken_by_retention_says_that_it_is_incomplete(watched: Watched) -> None:
    config = watched.config(made=COUNT)
    await watched.topics(partitions=1)
    with watched.site.worker(config) as worker:
        await watched.put({"project": 7, "id": 1})
        await watched.shows(config, "made", 1)
        await worker.terminate()
    await watched.put(*({"project": 7, "id": number} for number in range(2, 6)))
    async with admin_of(watched.site.bootstrap) as admin:
        await admin.delete_records({TopicPartition(watched.source, 0): RecordsToDelete(before_offset=3)})
    with watched.site.worker(config) as worker:
        found = await watched.has_state(config, "made", "incomplete", count=3)
        log = worker.log()

    assert {"1", "4", "5"} == {item.item for item in found.items}
    assert "retention had removed events" in found.why
    assert "retention overtook a live view" in log


@pytest.mark.apache
async def test_check_reports_what_a_view_cannot_show(watched: Watched) -> None:
    config = watched.config(made=COUNT | {"public": False})
    secret = watched.site.folder / "secret"
    secret.write_text("short")
    config.write_text(config.read_text() + f'[live_server]\nsecret_file = "{secret}"\n')
    await create_topics(watched.site.bootstrap, [watched.source], 1, {"retention.ms": "60000", "cleanup.policy": "compact,delete"})
    await watched.site.topics("dead")
    checked = await asyncio.to_thread(run, "check", "--config", str(config))
    report = " ".join(checked.out.split())

    assert 1 == checked.code
    assert "is kept for 1 min, and live view made shows 1 h of it" in report
    assert "is compacted" in report
    assert "a secret has at least 32 bytes" in report


@pytest.mark.apache
async def test_missing_dead_letter_topic_is_named_and_the_worker_continues_to_wait(watched: Watched) -> None:
    config = watched.config(made=COUNT)
    await watched.topics(partitions=1)
    with watched.site.worker(config) as worker:
        await watched.shows(config, "made", 0)
        await delete_topic(watched.site.bootstrap, watched.site.names.topic("dead"))
        await watched.site.send("events", [(b"k", b"{"), (b"k", b'{"project": 7, "id": 1}')])
        named = f"its dead-letter topic '{watched.site.names.topic('dead')}' "
        await wait_until(lambda: named in worker.log(), 60, "the worker names the topic")
        await create_topics(watched.site.bootstrap, [watched.site.names.topic("dead")], 1)
        await watched.shows(config, "made", 1)
        dead_letters = await read_topic(watched.site.bootstrap, watched.site.names.topic("dead"), until=bool, timeout_seconds=60)

    assert [b"{"] == [dead_letter.value for dead_letter in dead_letters]
