"""The worker process from outside: events, SIGKILL, SIGSTOP, SIGTERM, and the records."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.structs import ConsumerRecord

from streams_app.embedded.child import Child
from streams_app.embedded.ports import LOOPBACK, free_port
from tests.helpers.folding.checker import event
from tests.helpers.kafka.topics import produce, read_topic
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import GROUPS, LIMIT_SECONDS, Stage, metric, until_folded
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.cache import ROOT


async def test_events_of_a_group_become_one_record_when_it_is_quiet(stage: Stage) -> None:
    with stage.worker() as worker:
        await worker.wait_ready()
        await produce(stage.bootstrap, stage.source, [event("a", "likes"), event("a", "shares"), event("b", "likes")])
        records = await read_topic(
            stage.bootstrap, stage.output, until=lambda found: len(found) >= 2, timeout_seconds=LIMIT_SECONDS
        )

    folded = {record.key: json.loads(record.value) for record in records}
    assert {b"a", b"b"} == set(folded)
    first = folded[b"a"]
    assert ["likes", "shares"] == first["metrics"]
    assert "a" == first["account_id"]
    assert ("account-metrics", "quiet", 2) == (first["fold"]["name"], first["fold"]["reason"], first["fold"]["events"])


async def test_two_workers_share_the_partitions_and_fold_every_event_once(stage: Stage) -> None:
    with stage.worker() as one, stage.worker() as two:
        await asyncio.gather(one.wait_ready(), two.wait_ready())
        for _ in range(5):
            await stage.send(200)
        outcome = await stage.outcome()
        claimed = [worker.log().count("claimed fold=") for worker in (one, two)]
        codes = await asyncio.gather(one.terminate(), two.terminate())

    assert [] == outcome.faults(stage.sent)
    assert 1_000 == outcome.events
    assert all(claimed)
    assert [0, 0] == list(codes)


async def test_killed_worker_loses_nothing_and_repeats_nothing_under_another_id(stage: Stage) -> None:
    with stage.worker() as one, stage.worker() as two:
        await asyncio.gather(one.wait_ready(), two.wait_ready())
        await stage.send(300)
        one.kill()
        await stage.send(300)
        with stage.worker() as three:
            await stage.send(300)
            await three.wait_ready()
            outcome = await stage.outcome()

    assert -9 == one.exit_code
    assert [] == outcome.faults(stage.sent)


async def test_frozen_worker_that_returns_neither_loses_nor_splits_events(stage: Stage) -> None:
    with stage.worker() as one, stage.worker() as two:
        await asyncio.gather(one.wait_ready(), two.wait_ready())
        await stage.send(300)
        before = two.log().count("claimed fold=")
        one.stop_signal()
        # The other one takes all four partitions once the session has expired.
        await stage.send(100)
        await wait_until(lambda: two.log().count("claimed fold=") >= before + 4, LIMIT_SECONDS, "the partitions are taken over")
        await stage.send(300)
        one.continue_signal()
        await stage.send(300)
        outcome = await stage.outcome()
        codes = await asyncio.gather(one.terminate(), two.terminate())

    assert [] == outcome.faults(stage.sent)
    assert [0, 0] == list(codes)


async def test_sigterm_hands_open_groups_over_to_the_next_worker(stage: Stage) -> None:
    config = stage.config(quiet_period="4s")
    with stage.worker(config) as one:
        await one.wait_ready()
        await stage.send(200)
        await until_folded(one, 200)
        assert 0 == await one.terminate()
    with stage.worker(config) as two:
        await two.wait_ready()
        outcome = await stage.outcome()

    assert [] == outcome.faults(stage.sent)
    assert GROUPS == len(outcome.values)


@pytest.mark.long
async def test_groups_overdue_after_downtime_are_emitted_at_once(stage: Stage) -> None:
    config = stage.config(quiet_period="2s")
    with stage.worker(config) as one:
        await one.wait_ready()
        await stage.send(60)
        await until_folded(one, 60)
        one.kill()
    with stage.worker(config) as two:
        outcome = await stage.outcome()
        assert two.exit_code is None

    assert [] == outcome.faults(stage.sent)
    assert GROUPS == len(outcome.values)


async def test_wiped_redis_loses_no_event(stage: Stage, redis_client: Any) -> None:
    with stage.worker(stage.config(quiet_period="2s")) as worker:
        await worker.wait_ready()
        await stage.send(300)
        await until_folded(worker, 300)
        keys = [key async for key in redis_client.scan_iter(f"{{{stage.names.app_id}/*")]
        await redis_client.delete(*keys)
        await stage.send(300)
        outcome = await stage.outcome()
        resyncs = metric(worker, "streams_app_resyncs_total")

    assert keys
    assert [] == outcome.faults(stage.sent, is_exact=False)
    assert resyncs


async def test_events_of_compressing_producers_are_folded(stage: Stage) -> None:
    with stage.worker() as worker:
        await worker.wait_ready()
        for codec in ("gzip", "snappy", "lz4", "zstd"):
            await stage.send(100, compression_type=codec)
        outcome = await stage.outcome()

    assert [] == outcome.faults(stage.sent)


BAD_INPUT: list[tuple[bytes | None, bytes | None, str]] = [
    (b"k", None, "tombstone"),
    (b"k", b"", "tombstone"),
    (b"k", b"no json", "not-json"),
    (b"k", b"\xff\xfe", "not-json"),
    (b"k", b'{"account_id": "k"', "not-json"),
    (b"k", b"[1, 2]", "not-an-object"),
    (b"k", b"17", "not-an-object"),
    (b"k", b'{"metrics": {"a": 1}}', "no-group"),
    (b"k", b'{"account_id": null, "metrics": {"a": 1}}', "no-group"),
    (b"k", b'{"account_id": {"x": 1}, "metrics": {"a": 1}}', "no-group"),
    (b"k", b'{"account_id": "k"}', "no-changed"),
    (b"k", b'{"account_id": "k", "metrics": null}', "no-changed"),
    (b"k", b'{"account_id": "k", "metrics": 7}', "no-changed"),
    (b"k", b'{"account_id": "k", "metrics": ["a", 7]}', "no-changed"),
    (b"k", b'{"account_id": "' + b"x" * 600 + b'", "metrics": ["a"]}', "too-large"),
    (b"k", b'{"account_id": "k", "metrics": ["' + b"x" * 300 + b'"]}', "too-large"),
    (b"k", json.dumps({"account_id": "k", "metrics": [f"m{i}" for i in range(257)]}).encode(), "too-many-names"),
    (None, b"no json", "not-json"),
]


async def test_every_class_of_bad_input_is_dead_lettered_and_the_partition_continues(stage: Stage) -> None:
    with stage.worker() as worker:
        await worker.wait_ready()
        await stage.send(24)
        where = await produce(stage.bootstrap, stage.source, [(key, value) for key, value, _ in BAD_INPUT])
        await stage.send(24)
        dead_letters = await stage.dead_letters(len(BAD_INPUT))
        outcome = await stage.outcome()
        code = await worker.terminate()

    found = {
        (int(headers["source-partition"]), int(headers["source-offset"])): (dead_letter, headers)
        for dead_letter, headers in _headers(dead_letters)
    }
    assert len(BAD_INPUT) == len(found) == len(dead_letters)
    for metadata, (key, value, reason) in zip(where, BAD_INPUT, strict=True):
        dead_letter, headers = found[metadata.partition, metadata.offset]
        assert (key, value or None, reason) == (dead_letter.key, dead_letter.value or None, headers["reason"])
        assert ("account-metrics", stage.source) == (headers["fold"], headers["source-topic"])
        assert int(headers["failed-at-ms"]) > 0
    assert [] == outcome.faults(stage.sent)
    assert 0 == code


@pytest.mark.long
async def test_group_that_is_never_quiet_is_emitted_at_its_max_hold(stage: Stage) -> None:
    config = stage.config(quiet_period="5s", fold='max_hold = "6s"')
    producer = AIOKafkaProducer(bootstrap_servers=stage.bootstrap)
    with stage.worker(config) as worker:
        await worker.wait_ready()
        await producer.start()
        done = asyncio.Event()

        async def never_quiet() -> None:
            number = 0
            while not done.is_set():
                key, value = event("a", f"n{number}")
                await producer.send_and_wait(stage.source, value, key)
                stage.sent[f"n{number}"] = key
                number += 1
                await asyncio.sleep(0.05)  # less than the quiet period

        busy = asyncio.create_task(never_quiet())
        try:
            records = await read_topic(stage.bootstrap, stage.output, until=bool, timeout_seconds=LIMIT_SECONDS)
        finally:
            done.set()
            await busy
            await producer.stop()

    assert "max_hold" == json.loads(records[0].value)["fold"]["reason"]


async def test_worker_ends_if_the_port_that_its_settings_name_is_in_use(stage: Stage) -> None:
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        port = other.getsockname()[1]
        with WorkerProcess(stage.folder / "streams.toml", stage.folder, {"STREAMS_APP_HTTP_PORT": str(port)}) as worker:
            code = await worker.wait_exit(LIMIT_SECONDS)

    assert 1 == code
    assert f"http.port: {LOOPBACK}:{port} is in use: end the other process" in worker.log()


async def test_faust_command_runs_the_same_worker(stage: Stage) -> None:
    command = [sys.executable, "-m", "faust", "-A", "streams_app.worker", "worker", "-l", "info"]
    faust = Child("faust", command, stage.folder / "faust", {"STREAMS_APP_CONFIG": str(stage.folder / "streams.toml")})
    try:
        await stage.send(50)
        outcome = await stage.outcome()
    except AssertionError as error:
        raise AssertionError(f"{error}; its log:\n{faust.log_tail()}") from None
    finally:
        faust.stop(20)
    left = sorted(path.name for path in (stage.folder / "faust").iterdir())

    assert [] == outcome.faults(stage.sent)
    assert ["server.log"] == left


def test_faust_command_without_redis_ends_with_75_and_an_explanation(stage: Stage) -> None:
    url = f"redis://{LOOPBACK}:{free_port()}/0"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    variables = {"STREAMS_APP_CONFIG": str(stage.folder / "streams.toml"), "STREAMS_APP_REDIS_URL": url, "PYTHONPATH": path}
    ran = subprocess.run(
        [sys.executable, "-m", "faust", "-A", "streams_app.worker", "worker", "-l", "info"],
        cwd=stage.folder, env={**os.environ, **variables}, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS,
    )  # fmt: skip

    assert 75 == ran.returncode, ran.stderr
    assert f"cannot reach Redis at {url}" in ran.stderr
    assert "Traceback" not in ran.stderr + ran.stdout


def _headers(records: list[ConsumerRecord]) -> list[tuple[ConsumerRecord, dict[str, str]]]:
    return [(record, {name: value.decode() for name, value in record.headers}) for record in records]
