"""``read-store rebuild`` as a person runs it: the content of the new table, its additions, and concurrent users."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from typing import Any

import asyncpg
import pytest
from asyncmy.errors import MySQLError

from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError
from streams_app.operations.rebuild import ALONE, RebuildResult, is_kept, summary
from streams_app.read_store.core.merge import StoredCell
from streams_app.read_store.core.rebuilding import behind
from streams_app.read_store.core.store import CheckpointError, CheckpointStep
from streams_app.read_store.registry import open_rebuilding, open_store
from streams_app.settings import ReadStoreSettings
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Stage
from tests.integration.read_store.compared import Compared, folded
from tests.servers.cache import ROOT

pytestmark = pytest.mark.timeout(300)

VALUES = "SELECT group_key, name, CAST(value AS TEXT) FROM {} WHERE value IS NOT NULL ORDER BY 1, 2"
SLOW = """
import time
from datetime import timedelta
from pathlib import Path
from streams_app.settings import Settings

def current(fold, pairs):
    if Path("slow").exists():
        time.sleep(3600)  # until it is killed
    return {pair: 1 for pair in pairs}

settings = Settings.load(Path("streams.toml"), {})
given = {"source": "python", "current": current, "timeout": timedelta(minutes=9)}
store = settings.read_store(None).model_copy(update=given)
settings = settings.model_copy(update={"read_stores": (store,)})
"""


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def compared(stage: Stage, request: pytest.FixtureRequest) -> Compared:
    url = f"sqlite:///{stage.folder}/both.db" if request.param == "sqlite" else request.getfixturevalue(f"{request.param}_url")
    return Compared(stage, url)


# Pure functions


P0, P1 = TP("t", 0), TP("t", 1)


def test_new_store_is_behind_if_the_former_one_has_read_more_of_an_existing_log() -> None:
    assert {P1} == behind({P0: 5, P1: 7, TP("gone", 0): 9}, {P0: 5, P1: 6}, recreated=())
    assert set() == behind({P1: 7}, {P0: 0, P1: 6}, recreated={P1})
    assert set() == behind({}, {P0: 0}, recreated=())


@pytest.mark.parametrize(
    ("old", "new", "is_level", "expected"),
    [
        (5, None, False, True), (5, 5, True, False), (6, 5, False, True), (4, 5, False, False),
        (4, 5, True, True), (-1, 5, True, True),
    ],
)  # fmt: skip
def test_cell_is_kept_if_the_topics_lack_it_or_its_version_was_reset(
    old: int, new: int | None, is_level: bool, expected: bool
) -> None:
    assert expected == is_kept(StoredCell(old, 1), None if new is None else StoredCell(new, 1), is_level=is_level, is_carried=False)


@pytest.mark.parametrize(("old", "new", "expected"), [(4, 5, False), (0, 5, False), (-1, 5, True), (6, 5, True)])
def test_carried_value_is_kept_over_a_higher_version_only_if_its_version_was_reset(old: int, new: int, expected: bool) -> None:
    """The record of the higher version may have been a dead letter that can be stored now."""
    assert expected == is_kept(StoredCell(old, 1), StoredCell(new, 1), is_level=True, is_carried=True)


def test_skipped_values_are_reported() -> None:
    declared = ReadStoreSettings(name="d", url="sqlite:///x.db", folds=("f",), source="carried")

    assert [
        "1 folded record read, 2 cells kept from the former table",
        "1 value passed over, which the store can never hold; the last one before it stays",
        "2 records of the topics passed over: not folded records",
    ] == summary(RebuildResult(records=1, kept=2, unstorable=1, rejected=2), declared)[:-1]


@pytest.mark.parametrize(("table", "why"), [("t" * 46, "45 letters"), ("t;--", "is not a valid name of a table")])
def test_table_name_without_room_for_a_suffix_is_rejected(table: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        open_rebuilding(ReadStoreSettings.model_construct(name="d", url="sqlite:///x.db", folds=("f",), table=table, shape="cells"))


# Content of the new table, and its additions


async def test_rebuilt_table_is_correct_and_keeps_cells_only_the_former_one_had(compared: Compared) -> None:
    await compared.prepare(("a", "likes", 1), ("b", "likes", 2), ("c", "likes", 3))
    await compared.send(folded("a", 10, ["likes"]), folded("b", 11, ["likes", "never"]))
    await compared.sync()
    await compared.execute("UPDATE folded_values SET value = '9' WHERE group_key = 'a'")
    await compared.execute("DELETE FROM folded_values WHERE group_key = 'b'")
    for group in "cd":  # no record of them is left, and the source knows one of them
        await compared.execute(f"INSERT INTO folded_values VALUES ('account-metrics', '{group}', 'likes', '7', 12, 1)")
    await compared.execute("CREATE VIEW shown AS SELECT group_key, name, value FROM folded_values")
    await compared.execute("CREATE INDEX by_name ON folded_values (name)")
    first = compared.run("rebuild")
    found = await compared.rows(VALUES.format("folded_values"))
    through_view = await compared.rows(VALUES.format("shown"))
    former = await compared.rows(VALUES.format("folded_values_old"))
    second = compared.run("rebuild")
    verified, _ = compared.verify()

    assert (0, 0, 0) == (first.code, second.code, verified)
    assert [("a", "likes", "1"), ("b", "likes", "2"), ("c", "likes", "3")] == found == through_view
    assert [("a", "likes", "9"), ("c", "likes", "7"), ("d", "likes", "7")] == former
    assert found == await compared.rows(VALUES.format("folded_values_old"))
    assert [(12,)] == await compared.rows("SELECT version FROM folded_values WHERE group_key = 'd' AND value IS NULL")
    assert 1 == len(await compared.indexes("folded_values"))
    assert (
        "2 folded records read, 2 cells kept from the former table\n"
        "folded_values is rebuilt; what was there is folded_values_old, until the next rebuild or you drop it\n"
    ) == first.out


LIMITED = """
CREATE TABLE folded_values (
    fold {key} NOT NULL, group_key {key} NOT NULL, likes integer CHECK (likes < 10), shares integer,
    versions {json} NOT NULL DEFAULT ('{{}}'), updated_ms {number} NOT NULL DEFAULT 0, PRIMARY KEY (fold, group_key)
)
"""


@pytest.mark.parametrize("value", ["99", "1.5"], ids=["a constraint rejects it", "it does not fit the column"])
async def test_last_value_stays_if_the_current_one_cannot_be_stored(compared: Compared, value: str) -> None:
    is_sqlite = compared.url.startswith("sqlite")
    json_type, key, integer = compared.types
    await compared.prepare(("a", "likes", 1), ("a", "shares", 2), ("b", "likes", 3))
    await compared.execute("DROP TABLE folded_values")
    await compared.execute(LIMITED.format(json=json_type, key=key, number=integer))
    compared.configure('shape = "groups"\ncolumns = ["likes", "shares"]\n')
    await compared.send(folded("a", 10, ["likes", "shares"]), folded("b", 11, ["likes"]))
    await compared.sync()
    if not is_sqlite:
        to_numeric = "MODIFY value decimal(9, 2)" if compared.is_mysql else "ALTER value TYPE numeric"
        await compared.execute(f"ALTER TABLE metrics {to_numeric}")
    await compared.execute(f"UPDATE metrics SET value = {value} WHERE account_id = 'a' AND metric = 'likes'")
    values = "SELECT group_key, likes, shares FROM folded_values ORDER BY 1"
    before = await compared.rows(values)
    ran = compared.run("rebuild")

    assert [("a", 1, 2), ("b", 3, None)] == before
    assert 0 == ran.code, ran
    assert before == await compared.rows(values)


async def test_table_of_another_shape_is_replaced_by_the_content_of_the_topics(compared: Compared) -> None:
    await compared.prepare(("a", "likes", 1))
    await compared.execute("DROP TABLE folded_values")
    await compared.execute("CREATE TABLE folded_values (something TEXT)")
    await compared.send(folded("a", 10, ["likes"]))
    ran = compared.run("rebuild")

    assert 0 == ran.code, ran.err
    assert [("a", "likes", "1")] == await compared.rows(VALUES.format("folded_values"))
    assert [] == await compared.rows("SELECT something FROM folded_values_old")
    assert ALONE in ran.out.splitlines()
    assert "a former one of another form is folded_values_old now, and was not read" in ran.out


@pytest.mark.long
async def test_store_can_change_its_shape(compared: Compared) -> None:
    await compared.prepare(("a", "likes", 1), ("a", "shares", 2))
    await compared.send(folded("a", 10, ["likes", "shares"]), folded("b", 11, ["likes"]))
    compared.configure('shape = "groups"\ncolumns = ["likes", "shares"]\n')
    ran = compared.run("rebuild")
    found = await compared.rows("SELECT group_key, CAST(likes AS TEXT), CAST(shares AS TEXT) FROM folded_values ORDER BY 1")
    verified = compared.run("verify")
    await compared.execute("UPDATE folded_values SET likes = '5', shares = NULL WHERE group_key = 'a'")
    code, differ = compared.verify("--repair")
    second = compared.run("rebuild")

    assert (0, 0, 0, 0) == (ran.code, verified.code, code, second.code), ran.err + verified.err
    assert [("a", "1", "2"), ("b", None, None)] == found
    assert [("likes", "wrong", 1), ("shares", "wrong", 2)] == sorted((one["name"], one["what"], one["source"]) for one in differ)
    assert found == await compared.rows("SELECT group_key, CAST(likes AS TEXT), CAST(shares AS TEXT) FROM folded_values ORDER BY 1")


@pytest.mark.long
async def test_table_made_by_users_keeps_its_types_and_columns_that_stay_behind_are_reported(compared: Compared) -> None:
    """A table in PostgreSQL stays, so its further columns keep their contents."""
    is_sqlite = compared.url.startswith("sqlite")
    await compared.prepare(("a", "likes", 1))
    await compared.execute("DROP TABLE folded_values")
    json_type, key, integer = compared.types
    await compared.execute(
        f"CREATE TABLE folded_values (fold {key} NOT NULL, group_key {key} NOT NULL, likes BIGINT CHECK (likes < 5), note TEXT, "
        f"doubled BIGINT GENERATED ALWAYS AS (likes * 2) STORED, versions {json_type} NOT NULL DEFAULT ('{{}}'), "
        f"updated_ms {integer} NOT NULL DEFAULT 0, PRIMARY KEY (fold, group_key))"
    )
    compared.configure('shape = "groups"\ncolumns = ["likes"]\n')
    await compared.send(folded("a", 10, ["likes"]))
    await compared.execute("INSERT INTO folded_values (fold, group_key, likes, note) VALUES ('account-metrics', 'a', 4, 'mine')")
    ran = compared.run("rebuild")

    assert 0 == ran.code, ran.err
    assert is_sqlite == ("the store does not write note: what is there will be in folded_values_old alone" in ran.out)
    further = None if is_sqlite else "mine"
    assert [("a", 1, 2, further)] == await compared.rows("SELECT group_key, likes, doubled, note FROM folded_values")
    with pytest.raises((sqlite3.IntegrityError, asyncpg.CheckViolationError, MySQLError)):
        await compared.execute("UPDATE folded_values SET likes = 7")


# With concurrent users


@pytest.mark.long
async def test_worker_continues_during_a_rebuild_and_a_reader_never_sees_a_value_go_back_or_disappear(compared: Compared) -> None:
    await compared.prepare()
    await compared.execute("INSERT INTO metrics VALUES ('a', 'likes', 0)")
    await compared.send(folded("a", 10, ["likes"]))
    seen: list[list[tuple[str, ...]]] = []
    is_over = asyncio.Event()

    async def change() -> int:
        version = 10
        while not is_over.is_set():
            version += 1
            await compared.execute(f"UPDATE metrics SET value = {version}")
            await compared.send(folded("a", version, ["likes"]))
        return version

    async def poll() -> None:
        while not is_over.is_set():
            seen.append(await compared.rows(VALUES.format("folded_values")))
            await asyncio.sleep(0.005)  # a reader polls repeatedly

    with compared.stage.worker(compared.config) as worker:
        await worker.wait_ready()
        await wait_until(lambda: compared.rows(VALUES.format("folded_values")), LIMIT_SECONDS, "the worker syncs")
        tasks = [asyncio.create_task(change()), asyncio.create_task(poll())]
        rans = [await asyncio.to_thread(compared.run, "rebuild") for _ in range(2)]
        verified = await asyncio.to_thread(compared.run, "verify", "--wait", "0.5")
        is_over.set()
        last, _ = await asyncio.gather(*tasks)

        async def is_last() -> bool:
            return [("a", "likes", str(last))] == await compared.rows(VALUES.format("folded_values"))

        await wait_until(is_last, LIMIT_SECONDS, "the worker has gone on with the new table")
        code = await worker.terminate()
    values = [int(rows[0][2]) for rows in seen if rows]

    assert [0, 0, 0, 0] == [*(ran.code for ran in rans), verified.code, code], [*rans, verified]
    assert len(seen) == len(values)
    assert sorted(values) == values


@pytest.mark.long
async def test_final_catch_up_of_a_rebuild_blocks_workers_but_not_readers(stage: Stage, postgresql_url: str) -> None:
    compared = Compared(stage, postgresql_url)
    await compared.prepare()
    rebuilding, new = open_rebuilding(compared.declared)
    store = open_store(compared.declared)
    await store.set_checkpoint(P0, 3, 0)
    await rebuilding.prepare()
    await new.set_checkpoint(P0, 4, 0)
    tasks = []

    async def catch_up() -> list[Any]:
        tasks.append(asyncio.create_task(store.apply([], CheckpointStep(P0, 3, 5), 0)))
        await wait_until(lambda: compared.rows("SELECT 1 FROM pg_locks WHERE NOT granted"), LIMIT_SECONDS, "a worker waits")
        seen = await compared.rows("SELECT topic FROM folded_values_progress")
        assert not await rebuilding.switch(())
        return seen

    seen = await rebuilding.with_writers_paused(catch_up)
    with pytest.raises(CheckpointError, match="has progress 4 for t-0, expected 3"):
        await tasks[0]
    for each in (rebuilding, new, store):
        await each.close()

    assert [("t",)] == seen


@pytest.mark.long
async def test_killed_rebuild_does_not_change_the_store_and_the_next_one_reports_its_remains(compared: Compared) -> None:
    await compared.prepare()
    folder = compared.stage.folder
    (folder / "slow_source.py").write_text(SLOW)
    await compared.send(*(folded(f"g{number}", 10 + number, ["likes"]) for number in range(20)))
    await compared.execute("INSERT INTO folded_values VALUES ('account-metrics', 'z', 'likes', '5', 1, 1)")
    (folder / "slow").touch()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = ["-m", "streams_app", "read-store", "rebuild", "--app", "slow_source:settings"]
    killed = await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=folder, env=environment)

    async def has_begun() -> bool:
        return bool(await compared.rows_or_none("SELECT * FROM folded_values_new_progress"))

    await wait_until(has_begun, LIMIT_SECONDS, "it has begun")
    killed.send_signal(signal.SIGKILL)
    await killed.wait()
    left = await compared.rows(VALUES.format("folded_values"))
    (folder / "slow").unlink()
    ran = compared.run_app("rebuild", "slow_source:settings")
    verified = compared.run_app("verify", "slow_source:settings")

    assert [("z", "likes", "5")] == left
    assert (0, 0) == (ran.code, verified.code), ran.err + verified.err
    assert ran.out.startswith("removed folded_values_new with 0 rows, left by an interrupted rebuild\n")
    assert 21 == len(await compared.rows(VALUES.format("folded_values")))
    assert None is await compared.rows_or_none("SELECT * FROM folded_values_new")
