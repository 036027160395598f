"""The page of a read store, and the rows on the page of a record: equal to the commands, with one part away at a time."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from streams_app.delivery.batch import TP
from streams_app.embedded.ports import free_port
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.core.store import CheckpointStep
from streams_app.read_store.registry import open_store
from streams_app.settings import Settings
from tests.helpers.cli.commands import FOLD, Place, run
from tests.helpers.console.consoles import RunningConsole, running_console, with_console
from tests.helpers.kafka.topics import create_topics, produce
from tests.helpers.waiting import wait_until

PATH = "/read-stores/dashboard"
ATTACK = "<script>alert(1)</script>\u202e\0"


class Dashboard:
    """A read store in SQLite with its source, two records of its topic, and settings."""

    def __init__(self, app: Place) -> None:
        self.app = app
        self.config = Path(app.config())
        sql = "SELECT account, metric, value FROM metrics"
        self.config.write_text(self.config.read_text() + app.read_store.replace("SELECT account, metric, SUM(value) FROM metrics "
                               "GROUP BY account, metric", sql))  # fmt: skip
        self.settings = Settings.load(self.config, {})

    async def prepare(self, *cells: tuple[str, str, int], read: int = 1) -> None:
        """Create the topics, a source with values, and a store with the same values that has read some of two records."""
        await create_topics(self.app.bootstrap, self.app.topics, partitions=1)
        self.app.write_database()
        with closing(sqlite3.connect(self.app.folder / "write.db")) as connection, connection:
            connection.executemany("INSERT INTO metrics VALUES (?, ?, ?)", cells)
        for version, (group, name, _) in enumerate(cells[:2]):
            fold_id = f"{FOLD}:{self.app.topics[0]}:0:{version}-{version}"
            fold = {"id": fold_id, "name": FOLD, "version": version}
            value = json.dumps({"account_id": group, "metrics": [name], "fold": fold}).encode()
            await produce(self.app.bootstrap, self.app.topics[1], [(group.encode(), value)],
                          headers=[("fold-id", fold_id.encode())])  # fmt: skip
        store = open_store(self.settings.read_store(None))
        await store.initialise()
        changes = [CellChange(Cell(FOLD, group, name), number, value) for number, (group, name, value) in enumerate(cells)]
        await store.apply(changes, CheckpointStep(TP(self.app.topics[1], 0), None, read), 0)
        await store.close()

    def execute(self, sql: str) -> None:
        with closing(sqlite3.connect(self.app.folder / "read.db")) as connection, connection:
            connection.execute(sql)


@pytest.fixture
def dashboard(app: Place) -> Dashboard:
    return Dashboard(app)


async def compared(console: RunningConsole) -> Any:
    """Compare the store, and return its page once the comparison has ended."""
    status, _, headers = await console.post(f"{PATH}/verify")
    assert (303, f"{PATH}#comparison") == (status, headers["Location"])

    async def found() -> Any:
        page = await console.json(f"{PATH}.json")
        return page if page["comparison"] and not page["progress"] else None

    return await wait_until(found, 60, "the comparison has ended")


async def test_comparison_equals_that_of_the_command(dashboard: Dashboard) -> None:
    await dashboard.prepare(("a", "likes", 1), ("b", "likes", 2), (ATTACK, ATTACK, 3), read=2)
    dashboard.execute("UPDATE folded_values SET value = 9 WHERE group_key = 'a'")
    dashboard.execute("UPDATE folded_values SET value = NULL WHERE group_key = 'b'")
    arguments = ["read-store", "verify", "--json", "--wait", "0.2", "--config", str(dashboard.config)]
    ran = await asyncio.to_thread(run, *arguments)
    lines = [json.loads(line) for line in ran.out.splitlines()]
    async with running_console(dashboard.settings) as console:
        before = await console.json(f"{PATH}.json")
        page = await compared(console)
        _, text, _ = await console.get(PATH)

    found = page["comparison"]
    assert (None, "differs", len(lines)) == (before["comparison"], found["word"], found["total"])
    assert sorted((one["group"], one["name"], one["what"], json.dumps(one["source"])) for one in lines) == sorted(
        (one["group"], one["name"], one["what"], one["current"]) for one in found["differences"]
    )
    assert ran.err.splitlines()[0] == found["says"][0]
    assert [("likes", 1, 2)] == [(one["name"], one["nulls"], one["cells"]) for one in found["nulls"] if one["nulls"]]
    assert found["repairable"] == len(lines) and f"would write {len(lines)} values" in text
    assert not any(raw in text for raw in ("<script>alert", "\u202e", "\0"))


async def test_store_that_equals_its_source_is_said_to_be_equal(dashboard: Dashboard) -> None:
    await dashboard.prepare(("a", "likes", 1), ("b", "likes", 2), read=2)
    async with running_console(dashboard.settings) as console:
        found = (await compared(console))["comparison"]
        rejected = await console.post(f"{PATH}/verify", headers={"Origin": "https://evil.example.com"})
        unknown = await console.post("/read-stores/another/verify")

    assert ("equal", 0, []) == (found["word"], found["total"], found["differences"])
    assert (403, 404) == (rejected[0], unknown[0])


async def test_only_one_comparison_runs_at_a_time(dashboard: Dashboard) -> None:
    await dashboard.prepare(("a", "likes", 1), ("b", "likes", 2), read=2)
    dashboard.execute("UPDATE folded_values SET value = 9 WHERE group_key = 'a'")  # checked a second time after 5 s
    async with running_console(dashboard.settings) as console:
        first = (await console.post(f"{PATH}/verify"))[0]
        second, text, _ = await console.post(f"{PATH}/verify")
        page = await console.json(f"{PATH}.json")

    assert (303, 409, True) == (first, second, "one at a time" in text)
    assert "dashboard" == page["progress"]["store"]


async def test_checkpoints_are_shown_with_what_is_left(dashboard: Dashboard) -> None:
    await dashboard.prepare(("a", "likes", 1), ("b", "likes", 2), read=1)
    async with running_console(dashboard.settings) as console:
        found = (await console.json(f"{PATH}.json"))["checkpoints"]
        _, text, _ = await console.get(PATH)

    (row,) = found["rows"]
    assert (1, 2, 1, 1) == (row["checkpoint"], row["end"], row["left"], found["left"])
    assert "1 behind" in text and "Not compared yet." in text


async def test_each_part_is_away_alone(dashboard: Dashboard) -> None:
    await dashboard.prepare(("a", "likes", 1), ("b", "likes", 2), read=1)
    without_kafka = Settings.model_validate(
        {**dict(dashboard.settings), "kafka": {"bootstrap_servers": f"127.0.0.1:{free_port()}"}, "http": {"port": free_port()}}
    )
    with closing(sqlite3.connect(dashboard.app.folder / "read.db")) as connection:
        connection.execute("DROP TABLE folded_values")
    async with running_console(without_kafka) as console:
        both = await console.json(f"{PATH}.json")
        failed = (await compared(console))["comparison"]
        status, text, _ = await console.get(PATH)
    async with running_console(dashboard.settings) as console:
        store_away = await console.json(f"{PATH}.json")

    assert ["missing"] * 3 == [one["type"] for one in (both["checkpoints"], both["ends"], failed)]
    assert ("run `streams-app read-store init" in both["checkpoints"]["why"], 200) == (True, status)
    assert 3 == text.count("cannot be read now")
    assert ("missing", None) == (store_away["checkpoints"]["type"], store_away["ends"])


async def test_locked_store_is_said_in_its_place(dashboard: Dashboard) -> None:
    await dashboard.prepare(("a", "likes", 1), ("b", "likes", 2), read=1)
    with closing(sqlite3.connect(dashboard.app.folder / "read.db", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        async with running_console(dashboard.settings) as console:
            page = await console.json(f"{PATH}.json")
            status, text, _ = await console.get(PATH)

    assert ("missing", True, None) == (page["checkpoints"]["type"], "locked" in page["checkpoints"]["why"], page["ends"])
    assert (200, True) == (status, "cannot be read now" in text)


async def test_hidden_values_are_nowhere(dashboard: Dashboard) -> None:
    await dashboard.prepare(("secret-a", "secret-name", 77_777), ("b", "secret-name", 2), read=2)
    dashboard.execute("UPDATE folded_values SET value = 88888 WHERE group_key = 'secret-a'")
    dashboard.execute("UPDATE folded_values SET value = NULL WHERE group_key = 'b'")
    record = f"/folds/{FOLD}/record?id={FOLD}:{dashboard.app.topics[0]}:0:0-0&key=secret-a"
    async with running_console(with_console(dashboard.settings, hide_values=True)) as console:
        page = await compared(console)
        texts = [json.dumps(page), (await console.get(PATH))[1], (await console.get(record))[1]]

    assert 2 == page["comparison"]["total"]
    for text in texts:
        main = text.partition("<main")[2].partition(">")[2] or text
        assert not any(secret in main for secret in ("secret-", "77777", "88888"))


async def test_record_is_shown_with_its_rows(dashboard: Dashboard) -> None:
    await dashboard.prepare(("a", "likes", 1), ("a", "saves", 2), ("b", "likes", 3), read=2)
    path = f"/folds/{FOLD}/record.json?id={FOLD}:{dashboard.app.topics[0]}:0:0-0&key="
    async with running_console(dashboard.settings) as console:
        page = await console.json(f"{path}a")
        none = await console.json(f"{path}other")
        _, text, _ = await console.get(f"{path.replace('.json', '')}a")
    dashboard.execute("DROP TABLE folded_values")
    async with running_console(dashboard.settings) as console:
        away = await console.json(f"{path}a")

    (stored,) = page["stores"]
    assert [("likes", "1", 0, "this record"), ("saves", "2", 1, "a newer record")] == [
        tuple(one[field] for field in ("name", "value", "version", "age")) for one in stored["cells"]
    ]
    assert ([], True) == (none["stores"][0]["cells"], stored["is_whole"])
    assert ("missing", True) == (away["stores"][0]["type"], "a newer record" in text)
