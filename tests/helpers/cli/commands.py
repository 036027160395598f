"""``streams-app`` run as a person runs it, and helpers for tests of its commands."""

from __future__ import annotations

import sqlite3
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import Names
from tests.helpers.worker import fork_server
from tests.helpers.worker.site import write_config

CANARY = "canary-7f3a9c"
LIMIT_SECONDS = 120
FOLD = "account-metrics"
WITH_SETTINGS = [["worker"], ["check"], ["topics", "create"], ["groups", "list"], ["read-store", "init"]]
"""Commands that read the settings."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


def run(*arguments: str, cwd: Path | None = None, **environment: str) -> Ran:
    """Run a command to its end; fail if the output contains the canary secret or a traceback."""
    command = [sys.executable, "-m", "streams_app", *arguments]
    done = fork_server.run(command, cwd or Path.cwd(), environment, LIMIT_SECONDS)
    ran = Ran(done.returncode, done.stdout, done.stderr)
    assert CANARY not in ran.text
    assert "Traceback" not in ran.text, ran.text
    return ran


@dataclass
class Place:
    """Settings and topics of one test."""

    names: Names
    bootstrap: str
    redis_url: str
    folder: Path

    @property
    def topics(self) -> list[str]:
        return [self.names.topic(suffix) for suffix in ("events", "folded", "dead")]

    def config(self, **options: Any) -> str:
        source, output, dead = self.topics
        given = {"app_id": self.names.app_id, "bootstrap": self.bootstrap, "redis_url": self.redis_url}
        path = self.folder / "streams.toml"
        return str(write_config(path, **{**given, "source": source, "output": output, "dead": dead, **options}))

    @property
    def read_store(self) -> str:
        sql = "SELECT account, metric, SUM(value) FROM metrics GROUP BY account, metric"
        return (
            f'[read_stores.dashboard]\nurl = "sqlite:///{self.folder}/read.db"\nfolds = ["{FOLD}"]\n'
            f'dead_letters = "{self.topics[2]}"\n'
            f'source = "sql"\nsource_url = "sqlite:///{self.folder}/write.db"\nsql = "{sql}"\n'
        )

    def write_database(self) -> None:
        with sqlite3.connect(self.folder / "write.db") as connection:
            connection.execute("CREATE TABLE metrics (account TEXT, metric TEXT, value INTEGER)")
        connection.close()
