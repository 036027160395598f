"""One group that makes its source fail is found, its record becomes a dead letter, and everything else is synced."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from streams_app.errors import TryAgainError
from streams_app.health.metrics import Metrics
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.sync.current_values import CurrentValues
from streams_app.read_store.sync.store_sync import StoreSync
from streams_app.settings import ReadStoreSettings, Settings
from tests.conftest import KafkaServer, Names
from tests.helpers.kafka.records import Raw
from tests.helpers.kafka.topics import create_topics, read_topic
from tests.helpers.manual_clock import ManualClock
from tests.helpers.read_store.stores import P0, Sqlite, sync_on

LIMIT_SECONDS = 60

TABLE = "CREATE TABLE metrics (account_id bigint, metric text, value bigint)"
ROWS = "INSERT INTO metrics VALUES (1, 'likes', 10), (2, 'likes', 20), (3, 'likes', 30)"
CASTS = "SELECT account_id, metric, value FROM metrics WHERE account_id = ANY(:groups::bigint[]) AND metric = ANY(:names)"
# SQLite casts any value; its JSON functions do not accept every value.
READS_JSON = (
    "SELECT account_id, metric, value FROM metrics WHERE account_id IN (SELECT json_extract(value, '$') FROM json_each(:groups))"
)


def likes(fold: str, pairs: Any) -> dict[Any, Any]:
    return {(group, name): int(group) * 10 for group, name in pairs}


@dataclass
class Faulty:
    """A store in SQLite whose source fails for some groups."""

    given: Mapping[str, Any]
    settings: Settings
    harness: Sqlite

    @property
    def declared(self) -> ReadStoreSettings:
        return self.settings.read_store(None)


@pytest.fixture(params=["sqlite", "postgresql", "python"])
def source_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of the write side, or an empty string if the source is a function."""
    if request.param == "python":
        return ""
    url: str = f"sqlite:///{tmp_path}/write.db" if request.param == "sqlite" else request.getfixturevalue("postgresql_url")
    return url


async def execute(url: str, *statements: str) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
            file.executescript(";".join(statements))
    else:
        connection = await asyncpg.connect(url)
        await connection.execute(";".join(statements))
        await connection.close()


@pytest.fixture
async def faulty(kafka: KafkaServer, names: Names, tmp_path: Path, source_url: str) -> AsyncIterator[Faulty]:
    given: dict[str, Any] = {"source": "python", "current": likes}
    if source_url:
        await execute(source_url, TABLE, ROWS)
        sql = READS_JSON if source_url.startswith("sqlite") else CASTS
        given = {"source": "sql", "source_url": source_url, "sql": sql}
    harness = Sqlite(tmp_path / "read.db")
    settings = Settings.model_validate({
        "app_id": names.app_id,
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers},
        "folds": [{"name": "f", "source": "s", "group_key": "id", "changed": "m", "quiet_period": "1s"}],
        "read_stores": [{"name": "dashboard", "url": f"sqlite:///{tmp_path}/read.db", "table": "cells", "folds": ["f"], **given}],
    })  # fmt: skip
    await harness.store.initialise()
    await create_topics(kafka.bootstrap_servers, [settings.read_store(None).dead_letters], 1)
    yield Faulty(given, settings, harness)
    await harness.close()


def folded(offset: int, group: object) -> Raw:
    value = {"id": group, "m": ["likes"], "fold": {"name": "f", "version": offset + 1}}
    return Raw(offset, key=b"g", value=json.dumps(value).encode())


@pytest.mark.parametrize("bad", [(0,), (5,), (2, 3), (0, 1, 2, 3, 4, 5)], ids=str)
async def test_records_of_groups_the_source_fails_for_are_dead_letters_and_the_others_are_synced(
    faulty: Faulty, kafka: KafkaServer, bad: tuple[int, ...]
) -> None:
    groups: list[object] = [1, 2, 3, 1, 2, 3]
    records = [folded(at, f"x{at}" if at in bad else group) for at, group in enumerate(groups)]
    metrics = Metrics(faulty.settings)
    sync = StoreSync(faulty.settings, faulty.declared, metrics, ManualClock(50))
    result = await sync_on(sync, records, 6)
    await sync_on(sync, [folded(6, 1)], 7)
    await sync.close()
    dead_letters = await read_topic(
        kafka.bootstrap_servers, faulty.declared.dead_letters,
        until=lambda found: len(found) >= len(bad), timeout_seconds=LIMIT_SECONDS,
    )  # fmt: skip
    headers = [{name: value.decode() for name, value in dead_letter.headers} for dead_letter in dead_letters]
    good = {str(group): group * 10 for at, group in enumerate(groups) if at not in bad and isinstance(group, int)} | {"1": 10}

    assert len(bad) == result.unstorable
    assert good == {group: value for group, _, value, *_ in await faulty.harness.rows()}
    assert {P0: 7} == await faulty.harness.store.checkpoints()
    assert [(str(at), "source-failed") for at in bad] == sorted((one["source-offset"], one["reason"]) for one in headers)
    assert all(one["error"].startswith("its source fails: ") for one in headers)


def changes(*groups: str) -> list[CellChange]:
    return [CellChange(Cell("f", group, "likes"), 1) for group in groups]


async def test_source_that_fails_for_everything_is_awaited_once_it_has_answered(faulty: Faulty) -> None:
    is_away = False

    def current(fold: str, pairs: Any) -> dict[Any, Any]:
        if is_away:
            raise KeyError("likes")  # of the error that a service answers with
        return likes(fold, pairs)

    given = {**faulty.given, "current": current} if "current" in faulty.given else faulty.given
    source = CurrentValues(ReadStoreSettings.model_validate({**faulty.declared.model_dump(), **given}), ManualClock(50))
    before = await source.of(changes("1"))
    is_away = True
    if url := faulty.declared.source_url:
        await execute(url, "ALTER TABLE metrics RENAME TO away")
    with pytest.raises(TryAgainError):
        await source.of(changes("x", "2", "3"))
    await source.close()

    assert [10] == [one.value for one in before[0]]


@pytest.mark.parametrize("error", [ConnectionError("away"), RuntimeError("away"), json.JSONDecodeError("html", "", 0)])
async def test_function_that_cannot_reach_its_service_blames_no_group(error: Exception, tmp_path: Path) -> None:
    def current(fold: str, pairs: Any) -> dict[Any, Any]:
        if pairs:
            raise error
        return {}

    given = {"name": "dashboard", "url": "sqlite:///x.db", "folds": ["f"], "source": "python", "current": current}
    source = CurrentValues(ReadStoreSettings.model_validate(given), ManualClock(50))
    with pytest.raises(TryAgainError, match=r"away|html"):
        await source.of(changes("1", "2"))
    await source.close()


@pytest.mark.parametrize(
    "answer",
    [
        lambda pairs: {("x", "likes"): float("nan")},
        lambda pairs: {("x", "likes"): object()},
        lambda pairs: {("unknown", "likes"): 1},
        lambda pairs: None,
        lambda pairs: {}[pairs],
        lambda pairs: asyncio.run(None),  # type: ignore[arg-type]  # raises any error
    ],
)
async def test_function_fault_for_one_group_does_not_affect_others(answer: Callable[[Any], Any]) -> None:
    def current(fold: str, pairs: Any) -> Any:
        return answer(tuple(pairs)) if ("x", "likes") in pairs else {pair: 1 for pair in pairs}

    given = {"name": "dashboard", "url": "sqlite:///x.db", "folds": ["f"], "source": "python", "current": current}
    source = CurrentValues(ReadStoreSettings.model_validate(given), ManualClock(50))
    found, failed = await source.of(changes("1", "x", "2"))
    await source.close()

    assert [("1", 1), ("2", 1)] == sorted((one.cell.group_key, one.value) for one in found)
    assert {Cell("f", "x", "likes")} == failed.keys()


async def test_query_with_several_rows_for_one_pair_affects_only_its_group(tmp_path: Path) -> None:
    await execute(f"sqlite:///{tmp_path}/write.db", TABLE, ROWS, "INSERT INTO metrics VALUES (2, 'likes', 4)")
    sql = "SELECT account_id, metric, value FROM metrics WHERE account_id IN (SELECT value FROM json_each(:groups))"
    given = {"name": "dashboard", "url": "sqlite:///x.db", "folds": ["f"], "source_url": f"sqlite:///{tmp_path}/write.db"}
    source = CurrentValues(ReadStoreSettings.model_validate({**given, "sql": sql}), ManualClock(50))
    found, failed = await source.of(changes("1", "2", "3"))
    await source.close()

    assert [10, 30] == sorted(one.value for one in found)  # type: ignore[type-var]  # they are numbers
    assert ["its source fails: returns several rows for one group and name; aggregate them (GROUP BY)"] == [*failed.values()]
