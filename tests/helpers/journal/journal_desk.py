"""Settings with one journal, what stands in it, and the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import redis.asyncio

from streams_app.journal.core.entry import Row
from streams_app.settings import Settings
from tests.conftest import Names
from tests.helpers.cli.commands import Ran, run
from tests.helpers.journal.journals import JournalShard, row

SOURCE = "events"


class Desk:
    """Settings with one journal, its first partition, and the commands."""

    def __init__(self, client: redis.asyncio.Redis, settings: dict[str, Any], folder: Path) -> None:
        self.settings = Settings.model_validate(settings)
        self.config = folder / "streams.toml"
        self.config.write_text(_toml(settings), "utf-8")
        self.shard = JournalShard(client, self.settings)

    def __call__(self, command: str, *arguments: str) -> Ran:
        return run("journal", command, "--config", str(self.config), *arguments)


def _toml(settings: dict[str, Any]) -> str:
    (journal,) = settings["journals"]
    lines = [f'app_id = "{settings["app_id"]}"', "[redis]", f'url = "{settings["redis"]["url"]}"']
    lines += ["[kafka]", f'bootstrap_servers = "{settings["kafka"]["bootstrap_servers"]}"', f"[journals.{journal['name']}]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in journal.items() if key != "name"]
    for fold in settings.get("folds", []):
        lines += [f"[folds.{fold['name']}]", *(f"{key} = {json.dumps(value)}" for key, value in fold.items() if key != "name")]
    return "\n".join(lines) + "\n"


def desk_settings(names: Names, url: str, bootstrap: str, **changed: Any) -> dict[str, Any]:
    fold = {"name": "f", "source": SOURCE, "group_key": "account_id", "changed": "changed", "quiet_period": "1m"}
    return {
        "app_id": names.app_id,
        "redis": {"url": url},
        "kafka": {"bootstrap_servers": bootstrap},
        "journals": [{"name": "accounts", "source": SOURCE, "key": "account_id", **changed}],
        "folds": [fold],
    }


def event(offset: int, day: int = 0, key: str = "a", *changed: str) -> Row:
    value = json.dumps({"account_id": key, "changed": changed}).encode()
    return row(key, offset, day, value)


async def three_days(desk: Desk) -> None:
    await desk.shard.append([event(0, 0, "a", "likes"), event(1, 0, "b", "likes"), event(2, 1, "a", "shares"), event(3, 2)])
