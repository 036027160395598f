"""Folds declared in Python with functions of the user's own, run by Faust's command as the README says."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.helpers import WorkerProcess, read_topic
from tests.integration.site import LIMIT_SECONDS, Site

MODULE = """
from streams_app import Fold, Settings, create_app

def decode(value):
    kind, account, *names = value.decode().split(",")
    return {"kind": kind, "account": account, "names": names}

def region(event):
    return {"a1": "north", "a2": "south"}[event["account"]]

app = create_app(Settings(
    app_id="APP", kafka={"bootstrap_servers": "KAFKA"}, redis={"url": "REDIS"}, http={"port": 0}, worker={"tick": "200ms"},
    folds=(Fold(name="f", source="APP.events", output="APP.folded", dead_letters="APP.events.dead", decode=decode, group_key=region,
                changed=lambda event: event["names"], source_filter=lambda event: event["kind"] != "noise", quiet_period="1s"),),
))
"""


class FaustWorker(WorkerProcess):
    """``faust -A my_folds worker``."""

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "faust", "-A", config.stem, "worker", "-l", "info", "--without-web", *arguments]


async def test_functions_decode_filter_group_and_name_and_their_errors_are_dead_letters_with_detail(site: Site) -> None:
    await site.topics("events", "folded", "events.dead", partitions=1)
    module = site.folder / "my_folds.py"
    text = MODULE.replace("APP", site.names.app_id).replace("KAFKA", site.bootstrap).replace("REDIS", site.redis_url)
    module.write_text(text)
    with FaustWorker(module, site.folder, {"PYTHONPATH": os.pathsep.join([str(site.folder), str(Path.cwd())])}) as worker:
        await worker.wait_ready()
        values = [b"post,a1,likes", b"noise,a1,x", b"post,a1,shares", b"post,a2,likes", b"post,a3,likes", b"\xff"]
        await site.send("events", [(b"k", value) for value in values])
        outcome = await read_topic(
            site.bootstrap, site.names.topic("folded"), until=lambda found: len(found) >= 2, timeout_seconds=LIMIT_SECONDS
        )
        letters = await read_topic(
            site.bootstrap, site.names.topic("events.dead"), until=lambda found: len(found) >= 2, timeout_seconds=LIMIT_SECONDS
        )

    assert {b"north": b'"changed":["likes","shares"]', b"south": b'"changed":["likes"]'} == {
        record.key: record.value[record.value.index(b'"changed"') : record.value.index(b',"fold"')] for record in outcome
    }
    headers = [dict(letter.headers) for letter in letters]
    assert [b"post,a3,likes", b"\xff"] == [letter.value for letter in letters]
    assert [(b"user-error", b"group_key: KeyError: 'a3'"), (b"user-error", b"decode: UnicodeDecodeError")] == [
        (header["reason"], header["detail"][: len(b"decode: UnicodeDecodeError")]) for header in headers
    ]
