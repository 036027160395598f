"""``streams-app tune`` on a topic: which records it reads, and whether a worker confirms its prediction."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition

from streams_app.delivery.batch import TP
from streams_app.kafka.log_ends import stable_ends
from streams_app.kafka.log_reader import log_reader, read_ranges
from streams_app.settings import KafkaSettings
from tests.helpers.cli.commands import Place, Ran, run
from tests.helpers.folding.checker import event
from tests.helpers.kafka.topics import produce
from tests.helpers.worker.site import Site, send_at

HOUR_MS = 3_600_000


def bursts(begin_ms: int, groups: int) -> list[tuple[str, int, int]]:
    """Return three bursts a group with gaps below half a second, and half a minute or more between them."""
    chosen = random.Random(11)
    found = []
    for group in range(groups):
        at_ms = begin_ms + chosen.randrange(20_000)
        for _ in range(3):
            for number in range(chosen.randrange(1, 9)):
                at_ms += chosen.randrange(20, 450)
                found.append((f"account_{group}", at_ms, number))
            at_ms += chosen.randrange(30_000, 90_000)
    return sorted(found, key=lambda one: one[1])


def tune(config: str | Path, *arguments: str) -> Ran:
    return run("tune", "--config", str(config), *arguments)


def curve_in(ran: Ran) -> dict[str, Any]:
    assert ran.code == 0, ran.text
    found: dict[str, Any] = json.loads(ran.out)
    return found


BY_EVENT = 'quiet_period = {field = "metrics.n3", default = "%s", at_most = "10s"}'


@pytest.mark.parametrize(("quiet", "options"), [('quiet_period = "%s"', {}), (BY_EVENT, {"leading": True})], ids=["usual", "asked"])
async def test_worker_with_the_recommended_quiet_period_makes_the_predicted_records(
    site: Site, quiet: str, options: dict[str, Any]
) -> None:
    await site.topics("events", "folded", "events.dead")
    sent = bursts(int(time.time() * 1000) - 2 * HOUR_MS, 200)
    await send_at(site, "events", sent)

    def config_with(period: str) -> Path:
        fold = site.fold("folded", "events", quiet_period="1s", backlog="sessions", **options)
        return site.config(fold.replace('quiet_period = "1s"', quiet % period))

    found = curve_in(tune(config_with("3s"), "--windows", "50ms,200ms,500ms,1s,2s,5s", "--target-ratio", "0.3", "--json"))
    quiet_ms = found["recommended"]["quiet_ms"]
    config = config_with(f"{quiet_ms}ms")
    with site.worker(config) as worker:
        outcome = await site.outcome("folded", len(sent))
        await worker.terminate()

    assert (len(sent), 200) == (found["events"], found["groups"])
    assert [point["records"] for point in found["curve"] if point["quiet_ms"] == quiet_ms] == [len(outcome.values)]
    assert 200 < len(outcome.values) < len(sent)


async def test_range_lies_between_two_moments(site: Site) -> None:
    await site.topics("events")
    begin_ms = int(time.time() * 1000) - 10 * HOUR_MS
    await send_at(site, "events", [(f"account_{n % 7}", begin_ms + n * 1_000, n) for n in range(1_000)])
    config = site.config(site.fold("folded", "events"))

    def ask(*arguments: str) -> tuple[int, int, int]:
        found = curve_in(tune(config, "--json", *arguments))
        return found["events"], found["from_ms"] - begin_ms, found["to_ms"] - begin_ms

    assert (1_000, 0, 999_000) == ask()
    assert (1_000, 0, 999_000) == ask("--from", "earliest")
    # The first record of each partition that is not older; each group is in one partition.
    assert (500, 500_000, 999_000) == ask("--from", str(begin_ms + 499_001))
    assert (200, 300_000, 499_000) == ask("--from", str(begin_ms + 300_000), "--to", str(begin_ms + 500_000))


async def test_growing_topic_is_read_up_to_its_end_at_the_start(site: Site) -> None:
    await site.topics("events", partitions=1)
    topic = site.names.topic("events")
    await produce(site.bootstrap, topic, [event("a", "x")] * 50)
    kafka = KafkaSettings(bootstrap_servers=site.bootstrap)
    async with log_reader(kafka, topic, range(1)) as consumer:
        ends = await stable_ends(consumer, [TopicPartition(topic, 0)])
        await produce(site.bootstrap, topic, [event("a", "x")] * 50)
        offsets = []
        async for batch in read_ranges(consumer, {TP(topic, 0): (7, ends[TopicPartition(topic, 0)])}):
            offsets += [record.offset for record in batch.records]
            await produce(site.bootstrap, topic, [event("a", "x")])

    assert list(range(7, 50)) == offsets


async def test_unfoldable_events_are_counted_and_shown(site: Site) -> None:
    await site.topics("events", partitions=1)
    good = event("a", "x")
    bad = [(b"a", None), (b"a", b"{"), (b"a", b'{"account_id": "a"}'), (b"a", b"[]"), (b"a", None)]
    await produce(site.bootstrap, site.names.topic("events"), [good, *bad, good])
    ran = tune(site.config(site.fold("folded", "events")), "--json")
    found = json.loads(ran.out)

    assert (1, 2, None) == (ran.code, found["events"], found["recommended"])
    assert "5 of 7 events (71.4%) were rejected" in found["doubt"]
    topic = site.names.topic("events")
    assert ran.err.splitlines() == [
        "5 of 7 events were rejected and are not in the curve:",
        f"  2 tombstone, the first at {topic}:0:1: the value is empty",
        f"  1 not-json, the first at {topic}:0:2: unexpected end of data: line 1 column 2 (char 1)",
        f"  1 no-changed, the first at {topic}:0:3: 'metrics' is missing or null, not an object, an array or a string",
        f"  1 not-an-object, the first at {topic}:0:4: the value is a JSON list",
    ]


@pytest.mark.parametrize("ahead_ms", [59 * 60_000, -30 * 60_000])
async def test_record_time_ahead_of_later_ones_prevents_a_recommendation(site: Site, ahead_ms: int) -> None:
    now_ms = int(time.time() * 1000)
    first_ms = now_ms - 4 * HOUR_MS
    await site.topics("events", partitions=1)
    await send_at(site, "events", [("a", now_ms + ahead_ms, 0), *[("a", first_ms + n * 60_000, n) for n in range(120)]])
    ran = tune(site.config(site.fold("folded", "events")), "--from", "earliest", "--json")
    found = json.loads(ran.out)

    assert (1, 121, None) == (ran.code, found["events"], found["recommended"])
    assert "120 of 121 events (99.2%) are older than an event before them" in found["doubt"]
    assert "older than an event before them, whose time they get, as in a worker: 120 events (99.2%)" in ran.err


@pytest.mark.parametrize("compression", ["gzip", "lz4", "zstd", "snappy"])
async def test_compressed_topic_is_read(site: Site, compression: str) -> None:
    await site.topics("events")
    await produce(site.bootstrap, site.names.topic("events"), [event("a", "x")] * 300, compression_type=compression)
    found = curve_in(tune(site.config(site.fold("folded", "events")), "--json"))

    assert (300, 1) == (found["events"], found["groups"])


@pytest.mark.apache
async def test_aborted_transactions_and_gaps_of_the_log_are_skipped(site: Site) -> None:
    await site.topics("events", partitions=1)
    topic = site.names.topic("events")
    producer = AIOKafkaProducer(bootstrap_servers=site.bootstrap, transactional_id=site.names.app_id)
    await producer.start()
    for is_kept in (True, False, True, False):
        await producer.begin_transaction()
        for key, value in [event("a", "x")] * 10:
            await producer.send(topic, value, key)
        await (producer.commit_transaction() if is_kept else producer.abort_transaction())
    await producer.stop()
    found = curve_in(tune(site.config(site.fold("folded", "events")), "--json"))

    assert 20 == found["events"]


async def test_fold_by_functions_reads_its_source(site: Site) -> None:
    await site.topics("events", partitions=1)
    await produce(site.bootstrap, site.names.topic("events"), [event(name, "x") for name in ("A", "a", "skip", "b")])
    (site.folder / "mine.py").write_text(
        "from streams_app import Fold, Settings\n"
        f"app = Settings(app_id='{site.names.app_id}', kafka={{'bootstrap_servers': '{site.bootstrap}'}}, folds=(Fold(\n"
        f"    name='folded', source='{site.names.topic('events')}', quiet_period='1m',\n"
        "    group_key=lambda event: event['account_id'].lower(), changed=lambda event: event['metrics'],\n"
        "    source_filter=lambda event: event['account_id'] != 'skip',\n"
        "),))\n"
    )
    found = curve_in(run("tune", "--app", "mine", "--json", cwd=site.folder))

    assert (3, 2) == (found["events"], found["groups"])


async def test_events_replayed_for_another_fold_are_skipped(site: Site) -> None:
    await site.topics("events")
    to = [("streams-app-replay", f"{site.names.app_id}/other".encode())]
    await produce(site.bootstrap, site.names.topic("events"), [event("a", "x")], headers=to)
    await produce(site.bootstrap, site.names.topic("events"), [event("a", "x")] * 2)
    config = site.config(site.fold("folded", "events") + site.fold("other", "events"))

    assert [2, 3] == [curve_in(tune(config, "--json", "--fold", name))["events"] for name in ("folded", "other")]


# Nothing to recommend


async def test_range_without_events_suggests_another(site: Site) -> None:
    await site.topics("events")
    await send_at(site, "events", [("a", int(time.time() * 1000) - 50 * HOUR_MS, 1)])
    ran = tune(site.config(site.fold("folded", "events")))

    assert 1 == ran.code
    assert f"error: there is no event in {site.names.topic('events')} since 20" in ran.err
    assert "try an earlier --from, as in --from -7d, or --from earliest" in ran.err


def test_missing_source_is_a_configuration_error(place: Place) -> None:
    ran = tune(place.config())

    assert 1 == ran.code
    assert f"the source {place.topics[0]!r} of fold 'account-metrics' does not exist" in ran.err


def test_unavailable_kafka_asks_for_a_retry(away: Place) -> None:
    assert 75 == tune(away.config()).code
