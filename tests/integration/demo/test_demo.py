"""The demo as people run it: a process that verifies itself, passes, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
import redis

from streams_app.embedded.ports import free_port
from tests.conftest import KafkaServer, RedisServer
from tests.helpers.kafka.topics import admin_of
from tests.helpers.waiting import wait_until_sync
from tests.helpers.worker.workers import get_page
from tests.servers.cache import ROOT

LIMIT_SECONDS = 120
MARKER = "STREAMS_APP_TEST_DEMO"


class Demo:
    """``streams-app demo`` in its own temporary directory; its processes carry a marker variable, or run in that directory."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "tmp"
        self.place = folder / "place"
        for each in (self.home, self.place):
            each.mkdir()
        self.environment = {
            **os.environ,
            "TMPDIR": str(self.home),
            MARKER: str(folder),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        }
        self.log = folder / "demo.log"
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "streams_app", "demo", *arguments]
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.place,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run the demo, and return its exit code and output."""
        return self.ended(self.start(*arguments)), self.text

    def ended(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the demo does not end:\n{self.text}")

    @property
    def text(self) -> str:
        return self.log.read_text("utf-8")

    def processes(self) -> dict[int, str]:
        """Return its running processes as pid → command line."""
        marker = f"{MARKER}={self.environment[MARKER]}".encode()
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                # Valkey writes its title over its variables, but runs in a directory of the demo.
                is_inside = os.readlink(entry / "cwd").startswith(str(self.home))
                if is_inside or marker in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # ended, or owned by another user
        return found

    def kept(self) -> set[str]:
        """Return the files in the directory in which it was started."""
        return {str(path.relative_to(self.place)) for path in self.place.rglob("*") if path.is_file()}

    def left(self) -> set[str]:
        """Return the files that it left in the temporary directory."""
        return {str(path.relative_to(self.home)) for path in self.home.rglob("*")}


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    made = Demo(tmp_path)
    yield made
    for pid in made.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in made.started:
        process.wait()


def number_of(text: str, name: str) -> float:
    """Return a number of the summary."""
    match = re.search(rf"^{name} +([\d,.]+)", text, re.MULTILINE)
    assert match, f"no {name} in:\n{text}"
    return float(match[1].replace(",", ""))


needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc")


@needs_proc
def test_demo_folds_verifies_itself_and_leaves_nothing_behind(demo: Demo) -> None:
    code, text = demo.run("--events", "3000", "--rate", "1500", "--verbose")

    assert code == 0, text
    assert re.search(r"^check passed .* all 3,000 events$", text, re.MULTILINE), text
    assert re.match(
        r"starting broker and Redis ...\n  console     http://127\.0\.0\.1:\d+  shows all of it in a browser\n", text
    ), text
    assert "fold        by account_id, quiet period 3.0 s, max_hold 10.0 s" in text
    assert "subscriber  recomputes a score for each folded record" in text
    assert number_of(text, "raw events") == 3_000
    assert number_of(text, "dead letters") == 0
    records, ratio = number_of(text, "folded records"), number_of(text, "folding ratio")
    assert 0 < records < 600
    assert ratio == pytest.approx(100 * (1 - records / 3_000), abs=0.06)
    assert 0 < number_of(text, "read-store writes") < 3_000
    assert number_of(text, "subscriber") == records
    assert re.search(r"^subscriber +[\d,]+ records done, [1-9]\d* attempts? failed and retried$", text, re.MULTILINE), text
    explained = re.search(r"^one record +(\S+) of account_\d+: the journal has ([\d,]+) raw events of it$", text, re.MULTILINE)
    assert explained, text
    assert re.search(r"^ +\d-\d+  changed \w+", text, re.MULTILINE), text
    assert re.search(r"journal read account_1 --follow --config \S+  \(in a second terminal\)$", text, re.MULTILINE), text
    assert "\x1b" not in text  # no terminal, no escape sequences
    assert "Traceback" not in text
    assert {} == demo.processes()
    assert set() == demo.left()
    assert {".cache/streams-app-demo/events.jsonl", ".cache/streams-app-demo/streams.toml"} == demo.kept()


@pytest.mark.long
def test_demo_ends_with_a_command_that_draws_the_curve_of_its_load(demo: Demo) -> None:
    _, text = demo.run("--events", "300", "--rate", "600", "--verbose")
    *_, quiet_period_line, _, command = text.splitlines()
    drawn = subprocess.run(
        shlex.split(command.removeprefix("draw the curve")),
        check=False, capture_output=True, text=True, cwd=demo.place, env=demo.environment,
    )  # fmt: skip

    assert quiet_period_line.startswith("quiet period?      2 s would have folded ")
    assert 0 == drawn.returncode, drawn.stderr
    assert drawn.stdout.startswith("account-metrics: 300 events of ")


@pytest.mark.long
def test_demo_leaves_no_directory_on_the_host(demo: Demo) -> None:
    code, _ = demo.run("--seconds", "0.5", "--rate", "50", "--groups", "3")

    assert (code, demo.left()) == (0, set())


@pytest.mark.long
@needs_proc
def test_demo_replay_counts_unfoldable_lines(demo: Demo, tmp_path: Path) -> None:
    good = [json.dumps({"time": 1_000 + n / 100, "user": f"u{n % 3}", "fields": {"seen": n}}) for n in range(60)]
    bad = ["not json", "[1, 2]", '{"fields": {"a": 1}}', '{"user": "u1"}', '{"user": {"id": 1}, "fields": {"a": 1}}']
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join([*good[:30], *bad, *good[30:]]) + "\n", "utf-8")
    code, text = demo.run("--replay", str(path), "--group-key", "user", "--changed", "fields", "--verbose")

    assert code == 0, text
    assert number_of(text, "raw events") == 65
    assert number_of(text, "dead letters") == 5
    assert re.search(r"^check passed +3 accounts, 3 account metrics: .* all 65 events$", text, re.MULTILINE), text
    assert {} == demo.processes()


def test_demo_replay_with_misnamed_fields_is_rejected_before_anything_starts(demo: Demo, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"ts": 1, "user": "anna", "fields": {"likes": 1}}\n' * 3, "utf-8")
    code, text = demo.run("--replay", str(path))

    assert code == 1
    assert text.splitlines() == [
        f"error: --replay {path}: no field account_id and no field metrics; your fields are ts, user, fields: "
        "try --group-key user --changed fields"
    ]


@pytest.mark.long
@needs_proc
def test_check_that_covered_no_event_fails(demo: Demo) -> None:
    code, text = demo.run("--seconds", "0.001", "--rate", "1", "--groups", "1")

    assert code == 70, text
    assert "check FAILED" in text
    assert "no event was folded" in text
    assert {} == demo.processes()


@pytest.mark.long
@needs_proc
def test_second_control_c_stops_at_once_and_leaves_nothing_behind(demo: Demo) -> None:
    process = demo.start("--seconds", "0", "--rate", "300")
    wait_until_sync(lambda: re.search(r" s +load +events +[1-9]", demo.text), 60, "the load runs")
    process.send_signal(signal.SIGINT)
    wait_until_sync(lambda: "finishing, Ctrl-C again to stop at once" in demo.text, 60, "the first one is answered")
    process.send_signal(signal.SIGINT)
    code = demo.ended(process)

    assert code == 130, demo.text
    assert demo.text.splitlines()[-1] == "interrupted"
    assert "Traceback" not in demo.text
    assert {} == demo.processes()
    assert set() == demo.left()


@pytest.mark.long
@needs_proc
@pytest.mark.parametrize("begun", ["starting broker and Redis", "starting a worker", "live page "])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_terminated_demo_leaves_nothing_behind(demo: Demo, number: signal.Signals, begun: str) -> None:
    process = demo.start("--seconds", "0", "--rate", "100")
    wait_until_sync(lambda: begun in demo.text, 60, begun)
    process.send_signal(number)
    code = demo.ended(process)

    assert code == 130, demo.text
    assert "Traceback" not in demo.text
    # A process that was just being forked is ended by the kernel after the demo has exited.
    wait_until_sync(lambda: not demo.processes(), 60, "every process of the demo has ended")
    assert set() == demo.left()


@pytest.mark.long
@needs_proc
def test_live_page_of_the_demo_moves_until_control_c(demo: Demo) -> None:
    process = demo.start("--live", "--rate", "300")
    wait_until_sync(lambda: "live page   http" in demo.text, 60, "the address is printed")
    found = re.search(r"live page +(http://[\w.:]+)/\?page=(\w+)", demo.text)
    assert found is not None
    url = f"{found[1]}/live/{found[2]}?view=updates&view=folded_records&view=people"

    def moves() -> bool:
        updates, records, people = json.loads(get_page(url)[1])["views"]
        return bool(updates.get("count") and records.get("items") and people["count"] == 0)

    wait_until_sync(moves, 60, "updates and folded records are shown")
    page = get_page(f"{found[1]}/?page={found[2]}")[1]
    process.send_signal(signal.SIGINT)
    code = demo.ended(process)

    assert "folded_records" in page
    assert (0, True) == (code, "check passed" in demo.text), demo.text
    assert {} == demo.processes()
    assert set() == demo.left()


@pytest.mark.long
@needs_proc
def test_control_c_ends_the_load_and_the_check_runs(demo: Demo) -> None:
    process = demo.start("--seconds", "0", "--rate", "300")
    wait_until_sync(lambda: re.search(r" s +load +events +[1-9]", demo.text), 60, "the load runs")
    process.send_signal(signal.SIGINT)
    code = demo.ended(process)

    assert code == 0, demo.text
    assert "check passed" in demo.text
    assert {} == demo.processes()
    assert set() == demo.left()


@needs_proc
def test_killed_demo_leaves_no_process(demo: Demo) -> None:
    process = demo.start("--seconds", "0", "--rate", "100")
    wait_until_sync(lambda: "live page " in demo.text, 60, "worker and hub are ready")
    assert len(demo.processes()) == 6  # itself, broker, Valkey, console, worker, hub
    process.kill()
    process.wait()

    wait_until_sync(lambda: not demo.processes(), 60, "every process of the demo has ended")


def test_demo_without_its_configured_kafka_asks_for_a_retry(demo: Demo, redis_server: RedisServer) -> None:
    bootstrap = f"127.0.0.1:{free_port()}"
    code, text = demo.run("--bootstrap", bootstrap, "--redis", redis_server.url, "--seconds", "1")

    assert code == 75, text
    assert f"cannot reach Kafka at {bootstrap}" in text
    assert "Unclosed" not in text
    assert set() == demo.left()


@pytest.mark.long
def test_demo_on_existing_servers_removes_what_it_created_there(demo: Demo, kafka: KafkaServer, redis_server: RedisServer) -> None:
    code, text = demo.run("--bootstrap", kafka.bootstrap_servers, "--redis", redis_server.url, "--events", "300", "--rate", "600")

    assert code == 0, text
    assert "check passed" in text
    assert "left behind" not in text
    assert set() == demo.left()
    with closing(redis.Redis.from_url(redis_server.url)) as client:
        assert [] == list(client.scan_iter("{demo-*"))
    if kafka.is_apache:
        assert [] == [name for name in asyncio.run(groups_of(kafka.bootstrap_servers)) if name.startswith("demo-")]


async def groups_of(bootstrap: str) -> list[str]:
    """Return the consumer groups of a broker."""
    async with admin_of(bootstrap) as admin:
        return [group for group, _ in await admin.list_consumer_groups()]
