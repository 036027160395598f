"""Every command of a whole application, with every kind of fold, and with a single Redis, Sentinel and a Redis Cluster.

No worker runs: the folds have open groups in two partitions, and a command ends with an exit code that its help names.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import click
import pytest
import redis as redis_py

from streams_app import Fold, LiveView, Settings, cli
from streams_app.delivery.batch import TP
from streams_app.folding.core.event import DetailedEvent, FoldEvent
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from streams_app.redis_access.client import connect
from streams_app.settings import JournalSettings, ReadStoreSettings
from tests.conftest import KafkaServer, RedisServer
from tests.helpers.folding.shards import fold_some
from tests.helpers.kafka.topics import create_topics, produce
from tests.servers.redis_cluster import ReplicatedCluster
from tests.servers.sentinels import SentinelGroup

MODULE: Final = "settings_of_every_command"
PARTITIONS: Final = 2
NAMES: Final = {"changed": "metrics"}

FOLDS: Final[dict[str, dict[str, Any]]] = {
    "names": NAMES | {"max_hold": "3h", "max_events": 9},
    "last": NAMES | {"keep": "last", "max_changed": 9},
    **{kind: NAMES | {"keep": {"likes": kind, "*": "last"}} for kind in ("sum", "max", "min", "count")},
    "events": {"keep": "events", "fields": ["metrics"], "max_bytes": 5_000},
    "whole-events": {"keep": "events", "close_when": {"status": ["done", 1, True]}},
    "close-when": NAMES | {"close_when": {"status": ["done", 7, 1.5]}},
    "close-by-function": NAMES | {"close_when": bool},
    "leading": NAMES | {"leading": True},
    "by-event": NAMES | {"quiet_period": {"field": "wait", "default": "15m", "at_most": "1h"}},
    "by-event-sum": NAMES | {"quiet_period": {"field": "wait", "default": "15m", "at_most": "1h"}, "keep": {"likes": "sum"}},
    "sessions": NAMES | {"backlog": "sessions", "start": "latest", "tombstones": "ignore"},
    "means": NAMES | {"keep": {"likes": "mean", "*": "first"}},
    "only": NAMES | {"only": {"status": ["open", "new"]}},
    "dedupe": NAMES | {"dedupe_by": "event_id"},
    "dedupe-by-header": {"keep": "events", "dedupe_by": "header:event-id", "max_events": 100_000},
    "fields": NAMES | {"group_key": ["a.b", "c"]},
    "record-key": NAMES | {"group_key": "@key"},
    "functions": {"group_key": str, "group_as": "who", "changed": list, "changed_as": "what", "decode": str, "source_filter": bool},
    "debezium": {"format": "debezium", "changed_as": "columns"},
    **{kind: NAMES | {"format": kind} for kind in ("json", "cloudevents", "avro", "protobuf", "json-schema")},
}  # fmt: skip


OF_FOLD: Final = {"groups explain", "groups flush", "groups drop", "tune"}
"""Commands of one fold, which ``operations/test_commands_of_every_declaration.py`` runs with a worker."""

OF_ALL: Final[dict[str, list[list[str]]]] = {
    "check": [[]],
    "topics create": [[]],
    "groups list": [["--json"], *(["--sort", sort] for sort in ("quiet", "oldest", "events"))],
    "read-store init": [["--store", "carried"], ["--store", "function"]],
    "read-store verify": [["--store", "carried", "--wait", "0"], ["--store", "function", "--wait", "0"]],
    "read-store rebuild": [["--store", "function"]],
    "read-store fill": [["--store", "function", "--fold", "names", "{lines}"]],
    "dead-letters list": [["--store", "carried"], ["--view", "news"]],
    "dead-letters replay": [["--store", "carried", "--dry-run"]],
    "events list": [[]],
    "events asyncapi": [[]],
    "events explain": [["nobody", "1"]],
    "events retry": [["nobody"]],
    "live show": [["page"], ["page", "--json"]],
    "live token": [["page"]],
    "live script": [[]],
    "live import": [["news", "{lines}"]],
    "journal list": [[], ["--json"], ["--top"]],
    "journal read": [["anna"], ["anna", "--json"], ["--unkeyed"]],
    "journal verify": [[]],
    "journal drop": [["--before", "2026-01-01"]],
    "forget": [
        ["nobody"],
        ["anna", "--json"],
        ["anna", "--yes", "--timeout", "0", "--tombstones"],
        ["anna", "--skip-dead-letters"],
    ],
    "reset": [["--live", "news"], ["--journal", "days"]],
}
"""Commands that concern the whole application, or a store, view, journal or subscriber of it."""

EVENT: Final = b'{"account_id":"anna","metrics":{"likes":1},"status":"open","wait":"1m"}'
"""An event in the source topic; folds of other formats reject it."""

RUNNING: Final = {"worker", "demo", "live serve", "console", "servers"}
"""Commands that run until a signal ends them; they have tests of their own."""

ENDS: Final = {0, 1, 3, 75}


def commands(of: click.Command = cli.group, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the words of every command."""
    if not isinstance(of, click.Group):
        yield " ".join(path)
        return
    context = click.Context(of)
    for name in of.list_commands(context):
        command = of.get_command(context, name)
        assert command is not None
        yield from commands(command, (*path, name))


def fold_of(name: str, prefix: str = "every") -> Fold:
    topics = {"source": f"{prefix}.source", "output": f"{prefix}.{name}", "dead_letters": f"{prefix}.dead"}
    return Fold.model_validate({"name": name, "group_key": "account_id", "quiet_period": "1h"} | topics | FOLDS[name])


def test_table_has_every_command() -> None:
    assert OF_FOLD | OF_ALL.keys() | RUNNING == set(commands())


@dataclass(frozen=True)
class Installation:
    """An application with open groups in every fold, without a worker."""

    settings: Settings
    folder: Path

    def run(self, command: str, arguments: list[str]) -> int:
        words = [one.format(lines=self.folder / "lines.jsonl") for one in arguments]
        return cli.run([*command.split(), "--app", f"{MODULE}:settings", *words])


def redis_url(topology: str, request: pytest.FixtureRequest, stack: ExitStack) -> str:
    if topology == "sentinel":
        return stack.enter_context(SentinelGroup.start()).url
    if topology == "cluster":
        return stack.enter_context(ReplicatedCluster.start()).url
    server: RedisServer = request.getfixturevalue("redis_server")
    return server.url


def event_of(fold: Fold, offset: int) -> Any:
    """Return an event of the group ``anna``, as the reader of the fold does."""
    if fold.reads_details:
        kept = (False, b'{"metrics":1}', 1) if fold.keeps_events else (False, b"", 1)
        event_id = b"id-%d" % offset if fold.dedupe_by is not None else b""
        return DetailedEvent(offset, 5_000 + offset, b"sanna", {} if fold.keeps_events else {"likes": 1}, *kept, id=event_id)
    return FoldEvent(offset, 5_000 + offset, b"sanna", {"likes": 1})


async def open_groups(settings: Settings) -> None:
    """Open the group ``anna`` in two partitions of each fold."""
    client = connect(settings.redis)
    for fold in settings.folds:
        for partition in range(PARTITIONS):
            keys = shard_keys(settings.app_id, fold.name, fold.source, partition)
            shard = Shard(fold, TP(fold.source, partition), ShardStore(FoldScripts(client), keys))
            await shard.claim(0, 1)
            await fold_some(shard, [event_of(fold, offset) for offset in range(3)])
    await client.aclose()


@pytest.fixture(
    scope="module", params=["single", *(pytest.param(name, marks=pytest.mark.long) for name in ("sentinel", "cluster"))]
)
def installation(
    request: pytest.FixtureRequest, kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp(request.param)
    app_id = f"test-{secrets.token_hex(6)}"
    (folder / "lines.jsonl").write_text("")
    with ExitStack() as stack:
        url = redis_url(request.param, request, stack)
        settings = Settings(
            app_id=app_id,
            kafka={"bootstrap_servers": kafka.bootstrap_servers},
            redis={"url": url},
            http={"port": 0},
            worker={"tick": "20ms"},
            schema_registry={"url": "http://127.0.0.1:9"},
            folds=tuple(fold_of(name, app_id) for name in FOLDS),
            read_stores=(
                ReadStoreSettings(name="carried", url=f"sqlite:///{folder}/a.db", folds=("last",), source="carried"),
                ReadStoreSettings(
                    name="function",
                    url=f"sqlite:///{folder}/b.db",
                    folds=("names", "sum"),
                    source="python",
                    current=lambda *_: {},
                ),
            ),
            live=(LiveView(name="news", kind="list", source=f"{app_id}.news", page="page", expiry="1h", public=True),),
            journals=(JournalSettings(name="days", source=f"{app_id}.source", key="account_id"),),
        )
        module = ModuleType(MODULE)
        module.settings = settings  # type: ignore[attr-defined]  # what --app imports
        sys.modules[MODULE] = module
        topics = {fold.output for fold in settings.folds} | {f"{app_id}.{name}" for name in ("source", "dead", "news")}
        asyncio.run(create_topics(kafka.bootstrap_servers, sorted(topics), partitions=PARTITIONS))
        asyncio.run(produce(kafka.bootstrap_servers, f"{app_id}.source", [(b"anna", EVENT)] * 3))
        asyncio.run(open_groups(settings))
        yield Installation(settings, folder)
        del sys.modules[MODULE]
        if request.param == "single":
            with redis_py.Redis.from_url(url) as client:
                for key in client.scan_iter(f"*{app_id}*", count=1_000):
                    client.delete(key)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", OF_ALL)
def test_command_ends_as_documented_with_all_folds(
    command: str, installation: Installation, capfd: pytest.CaptureFixture[str]
) -> None:
    for arguments in OF_ALL[command]:
        code = installation.run(command, arguments)
        output = "".join(capfd.readouterr())

        assert code in ENDS, output
        assert "Traceback" not in output, output
