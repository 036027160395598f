"""The tutorial, followed in its order in an empty folder; each output on the page is compared with the real one."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkout.pages import ROOT
from tests.helpers.waiting import wait_until_sync

pytestmark = pytest.mark.timeout(300)

PAGE = ROOT / "docs" / "tutorial" / "orders.md"
BLOCK = re.compile(r"(<!--[^\n]*-->\n)?```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SERVERS = ("streams-app servers", "streams-app worker", "streams-app live serve")
"""Commands that run until Ctrl-C."""

STARTED = {"servers": "running until Ctrl-C", "worker": "health/ready|http listens", "live": "live views are served"}
LIMIT_SECONDS = 60
KEEP_OPEN = """
import os, sys, threading
from pathlib import Path
from streams_app import Events, Settings
from shop import OrderChanged, catalogue, order_changed

with Events(Settings.load(Path("streams.toml"), os.environ), catalogue) as events:
    while not threading.Event().wait(0.3):
        events.publish_sync(order_changed, OrderChanged("ann", {"o3": "new"}))
"""
"""Changes an order again and again: on a busy machine, three seconds may pass before the next command has started."""


class Reader:
    """Does what the page says, with other ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        for name, words in {"streams-app": "-m streams_app", "python": ""}.items():
            script = bin_folder / name
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
            script.chmod(0o755)
        self.environment = os.environ | {
            "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "STREAMS_APP_HTTP_PORT": "0",
            "STREAMS_APP_LIVE_SERVER_PORT": "0",
        }
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text("utf-8")

    def start(self, command: str) -> str:
        """Start a command that runs until Ctrl-C, and return its output as soon as it serves."""
        name = command.split()[1]
        if name == "servers":
            command += " --kafka-port 0 --redis-port 0"
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                shlex.split(command), cwd=self.folder, env=self.environment, stdout=log, stderr=subprocess.STDOUT
            )
        wait_until_sync(lambda: re.search(STARTED[name], self.log(name)), LIMIT_SECONDS, f"{command} is ready")
        if name == "servers":
            text = self.log(name)
            for variable, pattern in (("KAFKA_BOOTSTRAP_SERVERS", r'servers = "([^"]+)"'), ("REDIS_URL", r'url = "([^"]+)"')):
                found = re.search(pattern, text)
                assert found is not None
                self.environment[f"STREAMS_APP_{variable}"] = found[1]
        return self.log(name)

    def run(self, command: str) -> str:
        done = subprocess.run(
            command, shell=True, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert 0 == done.returncode, done.stdout + done.stderr
        return done.stdout

    def do(self, command: str, expected: str) -> None:
        """Run a command, and compare its output; that of a command that reads what a worker writes may take a moment."""
        if command.startswith(SERVERS):
            seen = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", self.start(command))
            meant = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", expected)
            assert not meant or is_same(meant, seen), seen
            return
        changes, _, explains = command.partition("; streams-app ")
        if explains:
            self.run(changes)
            with subprocess.Popen([sys.executable, "-c", KEEP_OPEN], cwd=self.folder, env=self.environment) as changing:
                try:
                    explained = f"streams-app {explains}"
                    wait_until_sync(lambda: is_same(expected, self.run(explained)), LIMIT_SECONDS, f"the output of {explained}")
                finally:
                    changing.kill()
            return
        output = self.run(command)
        if not is_same(expected, output):
            wait_until_sync(lambda: is_same(expected, self.run(command)), LIMIT_SECONDS, f"the output of {command}: {output}")

    def end(self) -> None:
        for process in reversed(self.running.values()):
            process.send_signal(signal.SIGINT if process is self.running.get("servers") else signal.SIGTERM)
            process.wait(60)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    one = Reader(tmp_path)
    try:
        yield one
    finally:
        one.end()


def is_same(expected: str, seen: str) -> bool:
    """Return whether an output is as on the page, where … stands for any text."""
    pattern = ".*".join(map(re.escape, expected.strip().split("…")))
    return re.fullmatch(pattern, seen.strip(), re.DOTALL) is not None


def test_reader_of_the_tutorial_sees_what_it_prints(reader: Reader) -> None:
    seen = []
    for comment, language, body in BLOCK.findall(PAGE.read_text("utf-8")):
        seen.append(language)
        if comment.startswith("<!-- not run"):
            continue
        if language == "toml":
            (reader.folder / "streams.toml").write_text(body)
        elif language == "python":
            (reader.folder / "shop.py").write_text(body)
        elif language == "text":
            wait_until_sync(lambda: body.strip() in reader.log("worker"), LIMIT_SECONDS, "the worker prints it")  # noqa: B023
        else:
            for one in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                command, _, expected = one.partition("\n")
                reader.do(command, expected)
    servers = reader.running["servers"]
    reader.end()

    assert seen.count("console") > 6
    assert 1 == len(re.findall("recomputed ann: o1, o2", reader.log("worker")))
    assert 0 == servers.returncode
