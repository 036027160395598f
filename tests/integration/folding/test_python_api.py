"""examples/social.py, folds with functions, run by our command and by Faust's."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from examples import social
from tests.helpers.kafka.topics import read_topic
from tests.helpers.worker.site import LIMIT_SECONDS, Site
from tests.helpers.worker.workers import WorkerProcess


class OwnWorker(WorkerProcess):
    """``streams-app worker --app my_folds:app``."""

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "streams_app", "worker", "--app", f"{config.stem}:app", *arguments]


class FaustWorker(WorkerProcess):
    """``faust -A my_folds worker``."""

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "faust", "-A", config.stem, "worker", "-l", "info", "--without-web", *arguments]


def adapted(site: Site) -> str:
    """Return the example with the servers, topics and times of a test."""
    servers = f'kafka={{"bootstrap_servers": "{site.bootstrap}"}}, redis={{"url": "{site.redis_url}"}}, http={{"port": 0}}'
    text = Path(social.__file__).read_text("utf-8")
    for given, wanted in {
        'app_id="social",': f'app_id="{site.names.app_id}", {servers}, worker={{"tick": "200ms"}},',
        '"post-metric-updated"': f'"{site.names.topic("events")}"',
        '"15m"': '"1s"',
    }.items():
        assert given in text
        text = text.replace(given, wanted)
    return text


@pytest.mark.parametrize("kind", [OwnWorker, pytest.param(FaustWorker, marks=pytest.mark.long)])
async def test_functions_decode_filter_group_and_name_and_their_errors_are_dead_letters(
    site: Site, kind: type[WorkerProcess]
) -> None:
    await site.topics("events", "events.account-metrics", "events.dead", partitions=1)
    module = site.folder / "my_folds.py"
    module.write_text(adapted(site))
    with kind(module, site.folder, {"PYTHONPATH": os.pathsep.join([str(site.folder), str(Path.cwd())])}) as worker:
        await worker.wait_ready()
        values = [
            b"Anna;p7;likes=12;shares=3", b"anna;test;spam=1", b"anna;p8;likes=1", b"ben;p9;likes=2;shares=0",
            b"ben;p9;likes=many", b"\xff",
        ]  # fmt: skip
        await site.send("events", [(b"k", value) for value in values])
        records = await read_topic(
            site.bootstrap,
            site.names.topic("events.account-metrics"),
            until=lambda found: len(found) >= 2,
            timeout_seconds=LIMIT_SECONDS,
        )
        dead_letters = await read_topic(
            site.bootstrap, site.names.topic("events.dead"), until=lambda found: len(found) >= 2, timeout_seconds=LIMIT_SECONDS
        )
        code = await worker.terminate()

    assert {
        b"anna": b'{"account_id":"anna","metrics":{"likes":1,"shares":3}',
        b"ben": b'{"account_id":"ben","metrics":{"likes":2}',
    } == {record.key: record.value[: record.value.index(b',"fold"')] for record in records}
    headers = [dict(dead_letter.headers) for dead_letter in dead_letters]
    assert [b"ben;p9;likes=many", b"\xff"] == [dead_letter.value for dead_letter in dead_letters]
    assert [(b"user-error", b"changed: ValueError"), (b"user-error", b"decode: UnicodeDecodeError")] == [
        (header["reason"], b":".join(header["detail"].split(b":")[:2])) for header in headers
    ]
    assert 0 == code
