"""``streams-app check``: its findings and its advice."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis
from redis.asyncio import Redis

from streams_app.checking import findings
from streams_app.clock import SystemClock
from streams_app.embedded import Broker, Valkey
from streams_app.embedded.ports import free_port
from streams_app.settings import Settings
from tests.helpers.cli.commands import CANARY, FOLD, Place, Ran, run
from tests.helpers.kafka.topics import create_topics
from tests.helpers.worker.site import Site, frozen
from tests.helpers.worker.whole_app import GUARANTEES, WholeApp
from tests.helpers.worker.workers import WorkerProcess


def counted(ran: Ran) -> tuple[int, int]:
    """Return the numbers of errors and warnings of the last line, which must agree with the lines before."""
    match = re.search(r"^(\d+) errors?, (\d+) warnings?$", ran.out, re.MULTILINE)
    assert match
    counts = int(match[1]), int(match[2])
    nouns = zip(counts, ("error", "warning"), strict=True)
    assert ", ".join(f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in nouns) == match[0]
    assert counts == tuple(len(re.findall(rf"^{level} ", ran.out, re.MULTILINE)) for level in ("error", "warning"))
    return counts


async def test_check_finds_no_fault_once_the_topics_exist(place: Place) -> None:
    config = place.config()
    await asyncio.to_thread(run, "topics", "create", "--config", config)
    ran = await asyncio.to_thread(run, "check", "--config", config)

    assert ran.code == 0, ran.text
    assert counted(ran)[0] == 0
    for name in place.topics:
        assert re.search(rf"^ok +topic {re.escape(name)} .*has 4 partitions$", ran.out, re.MULTILINE)
    assert "maxmemory-policy is noeviction" in ran.out
    assert "ms apart" in ran.out
    assert "Add partitions to a source only at lag 0" in ran.out


def test_check_names_each_missing_topic_and_the_command(place: Place) -> None:
    ran = run("check", "--config", place.config())

    assert ran.code == 1
    assert counted(ran)[0] == 3
    assert "Add partitions" not in ran.out
    for name in place.topics:
        assert re.search(
            rf"^error +topic {re.escape(name)} .*does not exist\n +-> streams-app topics create$", ran.out, re.MULTILINE
        )


async def test_check_changes_nothing(place: Place, redis_client: Redis) -> None:
    config = place.config(extra=place.read_store)
    await asyncio.to_thread(run, "check", "--config", config)
    ran = await asyncio.to_thread(run, "check", "--config", config)

    assert "does not exist" in ran.out
    assert [] == [key async for key in redis_client.scan_iter(f"*{place.names.app_id}*")]
    assert [Path(config)] == list(place.folder.iterdir())


async def test_check_warns_about_a_redis_that_may_evict_groups(place: Place) -> None:
    await create_topics(place.bootstrap, place.topics, 4)
    with Valkey.start() as valkey:
        config = place.config(redis_url=valkey.url)
        good = await asyncio.to_thread(run, "check", "--config", config)
        with redis.Redis.from_url(valkey.url) as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
        bad = await asyncio.to_thread(run, "check", "--config", config)

    assert (good.code, bad.code) == (0, 1)
    assert counted(bad)[0] == 1
    assert re.search(
        r"^error +maxmemory-policy is allkeys-lru.*\n +-> CONFIG SET maxmemory-policy noeviction", bad.out, re.MULTILINE
    )


async def test_check_distinguishes_a_persistent_redis_from_a_volatile_one(place: Place, tmp_path: Path) -> None:
    await create_topics(place.bootstrap, place.topics, 1)
    ran = []
    for appendonly in (False, True):
        with Valkey.start(directory=tmp_path / str(appendonly), appendonly=appendonly) as valkey:
            ran.append(await asyncio.to_thread(run, "check", "--config", place.config(redis_url=valkey.url)))

    assert [0, 0] == [each.code for each in ran]
    assert "the append-only file is off" in ran[0].out
    assert re.search(r"^ok +the append-only file is on", ran[1].out, re.MULTILINE)
    assert 1 == counted(ran[0])[1] - counted(ran[1])[1]


@pytest.fixture(scope="module")
def silent() -> Iterator[Broker]:
    """Yield the address of a broker that accepts connections and answers nothing."""
    with Broker.start() as running, frozen(running.pid):
        yield running


async def test_check_finds_a_read_only_redis(place: Place, valkey: Valkey) -> None:
    await create_topics(place.bootstrap, place.topics, 4)
    config = place.config(redis_url=valkey.url)
    with redis.Redis.from_url(valkey.url) as client, Valkey.start() as primary:
        good = await asyncio.to_thread(run, "check", "--config", config)
        client.config_set("maxmemory", 1_000_000)
        full = await asyncio.to_thread(run, "check", "--config", config)
        client.config_set("maxmemory", 0)
        client.replicaof("127.0.0.1", primary.port)
        replica = await asyncio.to_thread(run, "check", "--config", config)
        left = client.keys(f"*{place.names.app_id}*")

    assert [0, 1, 1] == [good.code, full.code, replica.code], good.text
    assert re.search(r"^ok +Redis can be written to$", good.out, re.MULTILINE)
    assert re.search(r"^error +Redis is full: ", full.out, re.MULTILINE)
    assert re.search(r"^warning +\d+ % of maxmemory are used", full.out, re.MULTILINE)
    assert re.search(r"^error .*is a replica: a worker can write nothing there\n +-> name the primary", replica.out, re.MULTILINE)
    assert re.search(r"^error +Redis cannot be written to: ", replica.out, re.MULTILINE)
    assert [] == left


@pytest.mark.long
async def test_check_gives_up_on_an_unresponsive_redis(place: Place, valkey: Valkey) -> None:
    with frozen(valkey.pid):
        ran = await asyncio.to_thread(run, "check", "--config", place.config(redis_url=valkey.url))

    assert 1 == ran.code
    assert f"cannot reach Redis at {valkey.url}" in ran.out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["topics", "create"], 75),
        pytest.param(["check"], 1, marks=pytest.mark.long),
        pytest.param(["dead-letters", "list"], 75, marks=pytest.mark.long),
        pytest.param(["reset", "--fold", FOLD], 75, marks=pytest.mark.long),
    ],
)
def test_command_gives_up_on_an_unresponsive_kafka(place: Place, silent: Broker, words: list[str], code: int) -> None:
    ran = run(*words, "--config", place.config(bootstrap=silent.bootstrap_servers))

    assert code == ran.code
    assert f"cannot reach Kafka at {silent.bootstrap_servers}: no answer. Is it running?" in ran.text


async def test_check_connects_once_to_redis(place: Place, valkey: Valkey) -> None:
    source, output, dead = place.topics
    await create_topics(place.bootstrap, place.topics, 1)
    settings = Settings.model_validate({
        "app_id": place.names.app_id, "kafka": {"bootstrap_servers": place.bootstrap}, "redis": {"url": valkey.url},
        "folds": [{
            "name": "f", "source": source, "output": output, "dead_letters": dead,
            "group_key": "a", "changed": "b", "quiet_period": "1s",
        }],
        "live": [{"name": "v", "kind": "count", "source": source, "page": "p", "expiry": "1m", "public": True}],
        "journals": [{"name": "j", "source": source, "key": "a"}],
    })  # fmt: skip
    with redis.Redis.from_url(valkey.url) as client:
        before = client.info("stats")["total_connections_received"]
        texts = [finding.text async for finding in findings(settings, SystemClock())]
        after = client.info("stats")["total_connections_received"]

    assert 1 == after - before
    assert any(text.startswith("journals (j) may take") for text in texts)


async def test_check_warns_about_topics_with_another_partition_count(place: Place) -> None:
    await create_topics(place.bootstrap, place.topics, 1)
    ran = await asyncio.to_thread(run, "check", "--config", place.config())

    assert 0 == ran.code
    assert re.search(
        r"^warning +topic \S+ \(source\) has 1 partition, kafka.partitions is 4\n +-> set kafka.partitions = 1",
        ran.out,
        re.MULTILINE,
    )


async def test_check_finds_a_read_store_that_cannot_be_written_to(place: Place) -> None:
    config = place.config(extra=place.read_store)
    place.write_database()
    await asyncio.to_thread(run, "topics", "create", "--config", config)
    await asyncio.to_thread(run, "read-store", "init", "--config", config)
    with closing(sqlite3.connect(place.folder / "read.db")) as connection:
        connection.execute("BEGIN IMMEDIATE")
        locked = await asyncio.to_thread(run, "check", "--config", config)
        connection.execute("ROLLBACK")
    free = await asyncio.to_thread(run, "check", "--config", config)

    assert [1, 0] == [locked.code, free.code]
    assert re.search(r"^error +read store .*locked", locked.out, re.MULTILINE)
    assert re.search(r"^ok +read store dashboard can be written to", free.out, re.MULTILINE)


async def test_worker_reports_at_startup_what_check_calls_an_error(place: Place, valkey: Valkey) -> None:
    await create_topics(place.bootstrap, place.topics, 4)
    with redis.Redis.from_url(valkey.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    with WorkerProcess(Path(place.config(redis_url=valkey.url)), place.folder) as worker:
        await worker.wait_ready()

    assert "ERROR" in next(line for line in worker.log().splitlines() if "maxmemory-policy is allkeys-lru" in line)


def test_check_finds_folds_whose_offset_metadata_no_broker_would_accept(place: Place, away: Place) -> None:
    source, _, _ = place.topics
    more = "".join(
        f'[folds.{number:03}-{"n" * 59}]\nsource = "{source}"\ngroup_key = "a"\nchanged = "m"\nquiet_period = "1s"\n'
        for number in range(64, 320)
    )
    ran = run("check", "--config", place.config(bootstrap=away.bootstrap, extra=more))

    assert 1 == ran.code
    assert re.search(r"^error +\d+ folds of \S+ are too many for one application: .* a broker takes 4096 ", ran.out, re.MULTILINE)


@pytest.mark.apache
async def test_check_says_of_each_component_whether_its_topic_was_recreated(site: Site) -> None:
    app = WholeApp(site)
    await app.prepare()
    with app.worker() as worker:
        await worker.wait_ready()
        await app.send(10)
        await app.until_all_arrived()
        assert 0 == await worker.terminate()
    same = await app.run("check")
    await site.recreate("events")
    after = await app.run("check")
    readers = ["fold folded", "live view seen", "journal kept", "read store store", *(f"subscriber {name}" for name in GUARANTEES)]
    recreated = r"^(\w+) +\S+ is another log than the one that (.*) has read: the topic was deleted and created again"
    found = re.findall(recreated, after.out, re.MULTILINE)

    assert [0, 1] == [same.code, after.code], same.text
    assert readers == re.findall(r"^ok +(.*) has read the current logs", same.out, re.MULTILINE)
    # Kafka removes the commits of a topic with the topic, so subscribers begin anew.
    assert [("error", "fold folded"), ("warning", "live view seen"), ("error", "journal kept")] == found
    assert ["read store store"] == re.findall(r"^ok +(.*) has read the current logs", after.out, re.MULTILINE)
    assert "-> Run `streams-app reset --fold folded`" in after.out


async def test_check_examines_kafka_without_redis(place: Place) -> None:
    await create_topics(place.bootstrap, place.topics, 1)
    port = free_port()
    ran = await asyncio.to_thread(run, "check", "--config", place.config(redis_url=f"redis://:{CANARY}@127.0.0.1:{port}/0"))

    assert ran.code == 1
    assert counted(ran)[0] == 1
    assert f"cannot reach Redis at redis://127.0.0.1:{port}/0" in ran.out
    assert f"Kafka answers at {place.bootstrap}" in ran.out


def test_check_examines_redis_without_kafka(place: Place, away: Place) -> None:
    ran = run("check", "--config", place.config(bootstrap=away.bootstrap))

    assert ran.code == 1
    assert f"cannot reach Kafka at {away.bootstrap}" in ran.out
    assert "maxmemory-policy is noeviction" in ran.out


@pytest.mark.parametrize(
    "section",
    [
        "[redis]\npassword_file = 'nothing'",
        "[kafka]\nsecurity_protocol = 'SASL_PLAINTEXT'\nsasl_username = 'u'\nsasl_password_file = 'nothing'",
    ],
    ids=["redis", "kafka"],
)
def test_check_with_a_missing_password_file_examines_the_rest(place: Place, section: str) -> None:
    config = Path(place.config())
    head, _, rest = section.partition("\n")
    config.write_text(config.read_text("utf-8").replace(head, f"{head}\n{rest}", 1), "utf-8")
    ran = run("check", "--config", str(config), cwd=place.folder)

    assert ran.code == 1
    assert "cannot read nothing" in ran.text
    assert counted(ran)[0] >= 1


async def test_check_examines_the_read_store(place: Place) -> None:
    config = place.config(extra=place.read_store)
    await asyncio.to_thread(run, "topics", "create", "--config", config)
    place.write_database()
    before = await asyncio.to_thread(run, "check", "--config", config)
    await asyncio.to_thread(run, "read-store", "init", "--config", config)
    after = await asyncio.to_thread(run, "check", "--config", config)

    assert (before.code, after.code) == (1, 0), after.text
    assert "-> streams-app read-store init" in before.out
    assert re.search(r"^ok +read store dashboard has its tables", after.out, re.MULTILINE)
    assert re.search(r"^ok +read store dashboard: the source \(sql\) answers", after.out, re.MULTILINE)


async def test_check_finds_a_query_that_does_not_work(place: Place) -> None:
    config = place.config(extra=place.read_store.replace("SUM(value)", "SUM(worth)"))
    await asyncio.to_thread(run, "topics", "create", "--config", config)
    place.write_database()
    await asyncio.to_thread(run, "read-store", "init", "--config", config)
    ran = await asyncio.to_thread(run, "check", "--config", config)

    assert ran.code == 1
    assert counted(ran)[0] == 1
    assert "worth" in ran.out
