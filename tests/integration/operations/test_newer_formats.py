"""Commands on state that a newer version has written: each refuses it, and names its format."""

from __future__ import annotations

import asyncio
import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import redis as sync_redis

from streams_app.cli import run as run_command
from streams_app.delivery.batch import TP
from streams_app.folding.store.keys import shard_keys
from streams_app.journal.store.keys import journal_keys
from streams_app.live.store.keys import view_keys
from streams_app.read_store.core.store import format_of
from streams_app.read_store.registry import open_store
from streams_app.settings import Settings
from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers.kafka.topics import create_topics

SETTINGS = """
app_id = "{app_id}"
[kafka]
bootstrap_servers = "{bootstrap}"
[redis]
url = "{redis_url}"
[folds.f]
source = "{source}"
output = "{source}.f"
dead_letters = "{source}.dead"
group_key = "a"
changed = "m"
keep = "last"
quiet_period = "1s"
[read_stores.dashboard]
url = "sqlite:///{folder}/read.db"
folds = ["f"]
source = "carried"
dead_letters = "{source}.dead"
[journals.accounts]
source = "{source}"
key = "a"
max_bytes = 1_000_000
[live.news]
kind = "list"
source = "{source}"
page = "a"
payload = ["m"]
expiry = "1m"
public = true
"""

COMMANDS = [
    "check", "groups list", "groups explain x", "groups flush --all", "groups drop x", "journal list", "journal read x",
    "journal verify", "live show x", "read-store verify", "read-store rebuild", "dead-letters replay --store dashboard",
    "reset --fold f --yes",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_command_refuses_state_of_a_newer_format(
    command: str, kafka: KafkaServer, redis_server: RedisServer, names: Names, tmp_path: Path
) -> None:
    source, path = names.topic("events"), tmp_path / "streams.toml"
    path.write_text(SETTINGS.format(
        app_id=names.app_id, bootstrap=kafka.bootstrap_servers, redis_url=redis_server.url, source=source, folder=tmp_path,
    ))  # fmt: skip
    settings = Settings.load(path, {})
    metas = [
        shard_keys(names.app_id, "f", source, 0).meta,
        journal_keys(names.app_id, "accounts", source, 0).meta,
        view_keys(names.app_id, "news", source, 0).meta,
    ]
    newer = {"format": "99", "fence": "4", "clock": "5", "token": "t", "partitions": "1"}

    async def prepare() -> None:
        await create_topics(kafka.bootstrap_servers, [source, f"{source}.f", f"{source}.dead"], partitions=1)
        store = open_store(settings.read_store(None))
        await store.initialise()
        await store.set_checkpoint(format_of(TP(f"{source}.f", 0)), 99, 0)
        await store.close()

    asyncio.run(prepare())
    out = io.StringIO()
    with sync_redis.Redis.from_url(redis_server.url) as client:
        if command.startswith("reset"):
            metas = metas[1:]  # the store alone
        for meta in metas:
            client.hset(meta, mapping=newer)
        before = [client.hgetall(meta) for meta in metas]
        with redirect_stdout(out), redirect_stderr(out):
            code = run_command([*command.split(), "--config", str(path)])
        after = [client.hgetall(meta) for meta in metas]

    text = " ".join(out.getvalue().split())
    assert (1, before) == (code, after), text
    assert "has format 99" in text
