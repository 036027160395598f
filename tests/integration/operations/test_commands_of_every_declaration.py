"""Each command, with each setting of a fold and each kind of Redis: none of them fails because it does not know an option.

The settings of a fold and the commands are those of the code: one that is missing in the tables here fails a test.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest

from streams_app.cli import run as run_command
from streams_app.embedded import Valkey
from streams_app.fold import Fold
from tests.conftest import REDIS_CHOICE, KafkaServer, Names, RedisServer
from tests.helpers.cli.commands import Ran
from tests.helpers.kafka.topics import create_topics, produce
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import metric
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.cache import ROOT
from tests.servers.redis7 import Redis7
from tests.servers.redis_cluster import ReplicatedCluster
from tests.servers.sentinels import SentinelGroup

LIMIT_SECONDS = 120
PARTITIONS = 2
GROUPS = ("a", "b", "c", "d")
KIND = Redis7 if REDIS_CHOICE == "redis" else Valkey

PLAIN = {"group_key": '"account_id"', "changed": '"metrics"', "quiet_period": '"1h"'}
FOLDS: dict[str, dict[str, str]] = {
    "names": {"tombstones": '"ignore"'},
    "last": {"keep": '"last"', "start": '"latest"'},
    "sums": {"keep": '{"likes": "sum", "shares": "max"}'},
    "lasts": {"keep": '{"likes": "first", "shares": "min", "seen": "count", "*": "last"}'},
    "events": {"keep": '"events"', "changed": "", "max_bytes": "100_000"},
    "fields": {"keep": '"events"', "changed": "", "fields": '("account_id", "status")'},
    "by-event": {"quiet_period": '{"field": "wait", "default": "1h", "at_most": "2h"}', "leading": "True"},
    "auto": {
        "quiet_period": '{"auto": "knee", "at_least": "10s", "default": "1h", "at_most": "2h"}',
        "keep": '"events"',
        "changed": "",
    },
    "only": {"only": '{"status": ["open", "done", "x"], "account_id": list("abcdefgh")}'},
    "dedupe": {"dedupe_by": '"event_id"', "keep": '{"likes": "sum"}'},
    "bounds": {"max_hold": '"5h"', "max_events": "50", "max_changed": "90"},
    "closing": {"close_when": '{"status": ["done"], "nested.code": [1, True]}'},
    "means-closing": {"keep": '{"likes": "mean"}', "close_when": '{"status": ["done"]}', "max_events": "60"},
    "sessions": {"backlog": '"sessions"', "keep": '"last"'},
    "lists": {"group_key": '("account_id", "nested.code")', "changed": '"nested.tags"'},
    "key": {"group_key": '"@key"', "changed": '"status"'},
    "functions": {
        "group_key": "lambda event: event['account_id']",
        "group_as": '"account_id"',
        "changed": "lambda event: event['metrics']",
        "changed_as": '"metrics"',
        "decode": "json.loads",
        "source_filter": "lambda event: True",
        "close_when": "lambda event: event['status'] == 'done'",
    },
    "debezium": {"format": '"debezium"', "changed": "", "unavailable_value": '"__unavailable__"'},
    "debezium-last": {"format": '"debezium"', "changed": "", "keep": '"last"'},
    "cloudevents": {"format": '"cloudevents"', "keep": '{"likes": "sum"}'},
}
"""Name of a fold → its settings as Python expressions, beside :data:`PLAIN`; "" leaves one out."""
USUAL = {"names", "events", "auto", "means-closing", "lists", "key", "functions", "debezium-last", "cloudevents"}
"""Folds of `make test`: each kind of group key and each format is among them."""

OF_REGISTRY = {"avro", "protobuf", "json-schema"}
"""Formats that need a schema registry. They differ in how events are read, which no command of a fold does by itself."""

GROUP_OF = {"lists": '["{account}",7]'}
"""Fold → how its groups are typed, if not as the account."""

CALLS = [
    "groups list --fold {fold}",
    "groups list --fold {fold} --json --sort events",
    "groups explain {a} --fold {fold}",
    "groups drop {b} --fold {fold}",
    "reset --fold {fold}",
]
"""Calls for a fold that read Redis, and change nothing."""

CALLS_WITHOUT_REDIS = [
    "tune --fold {fold} --json",
    "dead-letters list --fold {fold}",
    "dead-letters replay --fold {fold} --dry-run",
]
"""Calls for a fold that read Kafka; they are made with one kind of Redis."""


def application(names: Names, bootstrap: str, redis_url: str, folder: Path) -> str:
    """Return a Python module with the settings of all folds."""
    lines = []
    for name, own in FOLDS.items():
        source = names.topic(SOURCES[own.get("format", '"json"')])
        given = {**PLAIN, **own}
        options = ", ".join(f"{key}={value}" for key, value in given.items() if value)
        lines.append(
            f'    Fold(name="{name}", source="{source}", output="{names.topic(name)}", dead_letters="{source}.dead", {options}),'
        )
    return f"""
import json
from streams_app import Fold, JournalSettings, LiveView, ReadStoreSettings, Settings

settings = Settings(
    app_id="{names.app_id}", kafka={{"bootstrap_servers": "{bootstrap}", "session_timeout": "2s"}}, redis={{"url": "{redis_url}"}},
    http={{"port": 0}}, worker={{"tick": "200ms", "commit_every": "500ms"}},
    folds=[
{chr(10).join(lines)}
    ],
)
"""


SOURCES = {'"json"': "of-json", '"debezium"': "of-debezium", '"cloudevents"': "of-cloudevents"}
"""Format → source topic of its folds."""


def values(number: int, account: str) -> dict[str, bytes]:
    """Return one event in the format of each source."""
    event = {
        "account_id": account,
        "metrics": {"likes": number, "shares": number, "seen": 1},
        "status": "open",
        "wait": "1h",
        "event_id": f"{account}-{number}",
        "nested": {"code": 7, "tags": ["x", "y"]},
    }
    row = {"account_id": account, "likes": number}
    change = {"before": {**row, "likes": -1}, "after": row, "op": "u", "source": {"db": "shop"}}
    cloud = {"specversion": "1.0", "id": f"{account}-{number}", "source": "/test", "type": "changed", "data": event}
    return {topic: json.dumps(value).encode() for topic, value in zip(SOURCES.values(), (event, change, cloud), strict=True)}


@dataclass
class Running:
    """The application, whose worker has folded events of each group, half of them in each partition."""

    names: Names
    bootstrap: str
    module: str
    folder: Path
    worker: WorkerProcess
    kind: str

    def call(self, text: str, **filled: str) -> Ran:
        """Run a command in this process."""
        words = [word.format(**filled) for word in text.split()]
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = run_command([*words, "--app", f"{self.module}:settings"])
        return Ran(code, out.getvalue(), err.getvalue())

    def send(self) -> None:
        """Send an event of each group, and wait until all folds have added it."""

        async def sending() -> None:
            for number, account in enumerate(GROUPS):
                for topic, value in values(number, account).items():
                    key = account.encode()
                    await produce(self.bootstrap, self.names.topic(topic), [(key, value)], partition=number % PARTITIONS)

        asyncio.run(sending())
        wanted = len(GROUPS) * len(FOLDS)
        asyncio.run(wait_until(lambda: self.folded() >= wanted, LIMIT_SECONDS, "all folds have added the events"))

    def folded(self) -> float:
        return metric(self.worker, "streams_app_events_folded_total")


@pytest.fixture(
    scope="module", params=["single", *(pytest.param(name, marks=pytest.mark.long) for name in ("sentinel", "cluster"))]
)
def running(
    request: pytest.FixtureRequest, kafka: KafkaServer, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("declarations")
    names = Names(f"test-{os.urandom(6).hex()}")
    # A process of pytest-xdist may set the fixture up again; with the same name it would import the former module.
    module = f"declared_{names.app_id.replace('-', '_')}"
    server: Any = None
    if request.param == "sentinel":
        server = SentinelGroup.start(KIND, folder / "sentinel")
    elif request.param == "cluster":
        server = ReplicatedCluster.start(KIND, folder / "cluster")
    url = redis_server.url if server is None else server.url
    (folder / f"{module}.py").write_text(application(names, kafka.bootstrap_servers, url, folder))
    sys.path.insert(0, str(folder))
    sources = [*map(names.topic, SOURCES.values())]
    topics = [*sources, *(f"{source}.dead" for source in sources), *map(names.topic, FOLDS)]
    asyncio.run(create_topics(kafka.bootstrap_servers, topics, partitions=PARTITIONS))
    environment = {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    with Declared(folder / f"{module}.py", folder, environment) as worker:
        asyncio.run(worker.wait_ready())
        made = Running(names, kafka.bootstrap_servers, module, folder, worker, request.param)
        made.send()
        yield made
        assert 0 == asyncio.run(worker.terminate()), worker.log()
    sys.path.remove(str(folder))
    if server is not None:
        server.stop()


class Declared(WorkerProcess):
    """``streams-app worker --app MODULE:settings``."""

    def command(self, config: Path, arguments: Any) -> list[str]:
        return [sys.executable, "-m", "streams_app", "worker", "--app", f"{config.stem}:settings", *arguments]


def test_table_names_every_setting_of_a_fold() -> None:
    used = {name for own in FOLDS.values() for name in own} | PLAIN.keys()
    formats = {own.get("format", '"json"').strip('"') for own in FOLDS.values()} | OF_REGISTRY

    assert Fold.model_fields.keys() == used | {"name", "source", "output", "dead_letters"}
    assert set(get_args(Fold.model_fields["format"].annotation)) == formats


@pytest.mark.parametrize("fold", [fold if fold in USUAL else pytest.param(fold, marks=pytest.mark.long) for fold in FOLDS])
def test_every_command_of_a_fold_knows_its_settings(running: Running, fold: str) -> None:
    typed = GROUP_OF.get(fold, "{account}")
    filled = {"fold": fold} | {account: typed.format(account=account) for account in GROUPS}
    calls = [*CALLS, *(CALLS_WITHOUT_REDIS if running.kind == "single" else [])]
    faults = {call: ran for call in calls if (ran := running.call(call, **filled)).code or "Traceback" in ran.text}
    flushed = running.call("groups flush {a} --fold {fold}", **filled)
    dropped = running.call("groups drop {b} --fold {fold} --yes --reason test", **filled)
    rest = running.call("groups flush --all --fold {fold}", **filled)
    left = running.call("groups list --fold {fold}", **filled)

    assert {} == faults
    assert (0, "flushed 1 group in 1 partition\n") == (flushed.code, flushed.out), flushed.text
    # The early record of a leading edge contains the event already.
    events = "0 events" if "leading" in FOLDS[fold] else "1 event"
    assert (0, f"dropped 1 group with {events}, without a record\n") == (dropped.code, dropped.out), dropped.text
    assert (0, "flushed 2 groups in 2 partitions\n") == (rest.code, rest.out), rest.text
    assert (0, "no open groups\n") == (left.code, left.out), left.text
