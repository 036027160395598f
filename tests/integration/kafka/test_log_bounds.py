"""Changes of topics under a running worker: recreation, retention, added partitions, a low size limit."""

from __future__ import annotations

import asyncio
import re
from contextlib import nullcontext

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewPartitions, RecordsToDelete

from streams_app.kafka.consumer_thread import FETCH_MAX_WAIT_MS
from tests.helpers.folding.checker import event, outcome_of
from tests.helpers.kafka.topics import admin_of, create_topics, delete_topic, produce, read_topic
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import FREQUENT_METADATA, LIMIT_SECONDS, Stage, metric, unhelpful_lines, until_folded
from tests.helpers.worker.workers import WorkerProcess

PARTITIONS = 4

pytestmark = [pytest.mark.apache, pytest.mark.timeout(200)]


async def cut(stage: Stage, before: dict[int, int]) -> None:
    """Delete records below an offset, as retention does."""
    async with admin_of(stage.bootstrap) as admin:
        await admin.delete_records(
            {TopicPartition(stage.source, partition): RecordsToDelete(before_offset=offset) for partition, offset in before.items()}
        )


async def send_unread(stage: Stage, partition: int, count: int) -> list[int]:
    """Send events that will not be folded; return their offsets."""
    items = [event("gone", f"gone{count}-{number}") for number in range(count)]
    return [each.offset for each in await produce(stage.bootstrap, stage.source, items, partition=partition)]


# Recreated topics


@pytest.mark.parametrize("idle", [False, True], ids=["events in all partitions", "events in one"])
async def test_worker_ends_and_names_the_command_if_a_topic_is_recreated(stage: Stage, idle: bool) -> None:
    with stage.worker() as worker:
        await worker.wait_ready()
        await stage.send(100, **({"partition": 2} if idle else {}))
        await stage.outcome()
        await delete_topic(stage.bootstrap, stage.source)
        await create_topics(stage.bootstrap, [stage.source])
        code = await worker.wait_exit(LIMIT_SECONDS)

    message = worker.log().rsplit("error: ", 1)[1]
    assert 1 == code
    assert [] == unhelpful_lines(worker.log())
    assert f"{stage.source}-" in message
    assert "deleted and created again. Run `streams-app reset --fold account-metrics`" in message


# Retention


@pytest.mark.parametrize("is_running", [False, True], ids=["while stopped", "while frozen"])
async def test_retention_that_overtakes_a_worker_is_reported_as_a_range_and_folding_continues(
    stage: Stage, is_running: bool
) -> None:
    """Every folded event is delivered; exactly the records removed before they were folded are counted."""
    config = stage.config(quiet_period="2s", session_timeout="6s")
    with stage.worker(config) as one:
        await one.wait_ready()
        await stage.send(100)
        await until_folded(one, 100)
        if is_running:
            # Shorter than the session: the worker keeps the partition and finds its position gone.
            one.stop_signal()
        else:
            assert 0 == await one.terminate()
        # The first one answers a fetch in progress, if any: then it is folded. A busy broker does that a while after it has
        # accepted the event, and events sent in between would be in the same answer.
        first, *_ = await send_unread(stage, 1, 1)
        await asyncio.sleep(10 * FETCH_MAX_WAIT_MS / 1000)
        last = (await send_unread(stage, 1, 30))[-1]
        await cut(stage, {1: last + 1})
        one.continue_signal()
        with nullcontext(one) if is_running else stage.worker(config) as two:
            await stage.send(100)
            outcome = await stage.outcome()
            counted = metric(two, "streams_app_known_loss_events_total")
            code = await two.terminate()

    folded = {name: b"gone" for name in outcome.ids_of if name.startswith("gone")}
    ranges = re.findall(rf"known loss: .* source={re.escape(stage.source)}-1 offsets=(\d+)-(\d+)", two.log())
    assert len(folded) <= is_running
    assert [] == outcome.faults({**stage.sent, **folded})
    assert [(str(first + len(folded)), str(last))] == ranges
    assert 31 == counted + len(folded)
    assert 0 == code


async def test_retention_below_the_fence_loses_nothing(stage: Stage) -> None:
    config = stage.config(quiet_period="3s")
    with stage.worker(config) as one:
        await one.wait_ready()
        sent = await produce(stage.bootstrap, stage.source, [event("a", f"n{number}") for number in range(20)], partition=1)
        stage.sent |= {f"n{number}": b"a" for number in range(20)}
        await until_folded(one, 20)
        one.kill()
    await cut(stage, {1: sent[-1].offset + 1})
    with stage.worker(config) as two:
        outcome = await stage.outcome()
        counted = metric(two, "streams_app_known_loss_events_total")
        assert 0 == await two.terminate()

    assert [] == outcome.faults(stage.sent)
    assert 0 == counted
    assert "known loss" not in two.log()


# Gaps


@pytest.mark.parametrize("outcomes", ["abort commit", "commit abort", "abort abort commit abort"])
async def test_skipped_offsets_of_the_log_are_no_gap(stage: Stage, outcomes: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=stage.bootstrap, transactional_id=stage.names.app_id)
    await producer.start()
    for number, outcome in enumerate(outcomes.split()):
        await producer.begin_transaction()
        key, value = event("a", f"t{number}")
        await producer.send_and_wait(stage.source, value, key, partition=1)
        if outcome == "commit":
            stage.sent[f"t{number}"] = key
        await (producer.commit_transaction() if outcome == "commit" else producer.abort_transaction())
    await producer.stop()
    # Everything exists before the first fetch: markers and aborted records lie before, between and behind events.
    with stage.worker() as worker:
        found = await stage.outcome()
        await stage.send(20, partition=1)
        later = await stage.outcome()
        lag = await wait_until(lambda: metric(worker, "streams_app_lag_events") == 0, LIMIT_SECONDS, "nothing is left to fold")
        log = worker.log()

    assert lag
    assert [] == later.faults(stage.sent)
    assert [] == found.faults({name: group for name, group in stage.sent.items() if name in found.ids_of})
    assert "resync" not in log


# Added partitions


async def test_events_in_partitions_added_under_a_running_worker_are_folded(stage: Stage) -> None:
    with WorkerProcess(stage.folder / "streams.toml", stage.folder, FREQUENT_METADATA) as worker:
        await worker.wait_ready()
        await stage.send(100)
        await stage.outcome()
        async with admin_of(stage.bootstrap) as admin:
            await admin.create_partitions({stage.source: NewPartitions(total_count=PARTITIONS + 2)})
        # Sent before the worker knows the partitions: these events are not skipped.
        for partition in range(PARTITIONS + 2):
            await stage.send(20, partition=partition)
        outcome = await stage.outcome()
        code = await worker.terminate()

    partitions = {fold_id.split(":")[2] for fold_id in outcome.values}
    assert [] == outcome.faults(stage.sent)
    assert {str(partition) for partition in range(PARTITIONS + 2)} == partitions
    assert 0 == code


# Too large


async def small_output(stage: Stage) -> str:
    """Return an output topic of one partition that accepts at most 2 000 bytes at once."""
    narrow = stage.names.topic("narrow")
    await create_topics(stage.bootstrap, [narrow], 1, {"max.message.bytes": "2000"})
    config = stage.config()
    config.write_text(config.read_text("utf-8").replace(stage.output, narrow), "utf-8")
    return narrow


async def test_record_too_large_for_the_broker_is_dead_lettered_and_the_partition_continues(stage: Stage) -> None:
    narrow = await small_output(stage)
    many = [f"a-name-that-is-rather-long-{number}" for number in range(200)]
    with stage.worker() as worker:
        await worker.wait_ready()
        await produce(stage.bootstrap, stage.source, [event("large", *many)], partition=0)
        dead_letters = await stage.dead_letters(1)
        await produce(stage.bootstrap, stage.source, [event("large", "y"), event("small", "y")], partition=0)
        records = await read_topic(
            stage.bootstrap, narrow, until=lambda found: outcome_of(found).events >= 2, timeout_seconds=LIMIT_SECONDS
        )
        # Counted by the tick after the one that sent them.
        await wait_until(lambda: metric(worker, "streams_app_outbox_records") == 0, LIMIT_SECONDS, "the outbox is empty")
        counted = metric(worker, "streams_app_dead_letters_total")
        code = await worker.terminate()

    (dead_letter,) = dead_letters
    headers = {name: value.decode() for name, value in dead_letter.headers}
    assert (b"large", "record-too-large", "account-metrics") == (dead_letter.key, headers["reason"], headers["fold"])
    assert (stage.source, "0", "0") == (headers["source-topic"], headers["source-partition"], headers["source-offset"])
    assert {b"large", b"small"} == set(outcome_of(records).groups.values())
    assert (1, 0) == (counted, code)


async def test_records_too_large_only_together_are_delivered(stage: Stage) -> None:
    narrow = await small_output(stage)
    sent = {f"n{number}": f"a{number}".encode() for number in range(40)}
    with stage.worker() as worker:
        await worker.wait_ready()
        await produce(stage.bootstrap, stage.source, [event(group.decode(), name) for name, group in sent.items()], partition=0)
        await wait_until(lambda: metric(worker, "streams_app_records_emitted_total") >= 40, LIMIT_SECONDS, "all groups left")
        assert 0 == metric(worker, "streams_app_dead_letters_total")
        records = await read_topic(stage.bootstrap, narrow, until=lambda found: len(found) >= 40, timeout_seconds=5)

    assert [] == outcome_of(records).faults(sent)
