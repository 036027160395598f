"""Read stores side by side: what folding saves them, and what a batch saves them; writes are counted by the servers themselves.

*Saved*: the load of the demo, folded by its quiet period in virtual time, is written to each store as folded records, one by one
with the code of the store, and also as a write for each raw event. *Speed*: records of many groups are written in batches as in a
worker, and one at a time: a plain upsert for each row for SQL, and one ``_bulk`` request for each record for OpenSearch, as PGSync
does it.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import asyncpg
import orjson

from benchmarks.finding import Finding
from streams_app.delivery.batch import TP
from streams_app.demo.load import METRICS, Load
from streams_app.read_store.core.merge import Cell, CellChange, newest
from streams_app.read_store.core.store import CheckpointStep
from streams_app.read_store.opensearch.connection import OpenSearchClient, write_bulk
from streams_app.read_store.opensearch.documents import Shape
from streams_app.read_store.registry import open_store
from streams_app.read_store.sync.store_sync import MAX_RECORDS
from streams_app.settings import ReadStoreSettings
from tests.servers.opensearch import OpenSearch  # the tests are not installed with the package
from tests.servers.postgresql import PostgreSQL

EVENTS: Final = 40_000
GROUPS: Final = 500
RATE: Final = 1_500.0
QUIET_MS: Final = 3_000
HOLD_MS: Final = 10_000
"""Quiet period and max hold are those of the demo."""
WIDE: Final = 10_000
WIDE_GROUPS: Final = 5_000
ALONE: Final = 2_000
"""Number of records that are written one at a time; more give the same speed."""

FOLD: Final = "account-metrics"
PARTITION: Final = TP("events.account-metrics", 0)
UPSERT: Final = """
INSERT INTO plain (fold, group_key, name, value, version) VALUES ({})
ON CONFLICT (fold, group_key, name) DO UPDATE SET value = excluded.value, version = excluded.version
WHERE plain.version < excluded.version
"""
PLAIN: Final = (
    "CREATE TABLE plain (fold TEXT, group_key TEXT, name TEXT, value {}, version BIGINT, PRIMARY KEY (fold, group_key, name))"
)

Record = list[CellChange]
"""The changes of one event or one folded record."""


def raw(events: int) -> Iterator[tuple[float, Record]]:
    """Return time and changes of each event of the demo's load, with the sum over the posts of its account as the value."""
    load, now_ms, number = Load(groups=GROUPS, rate=RATE), 0.0, 0
    posts: dict[tuple[str, str, str], int] = {}
    sums: dict[tuple[str, str], int] = {}
    while number < events:
        now_ms += 1_000
        for update in load.until(now_ms)[: events - number]:
            number += 1
            event = orjson.loads(update.value)
            account, post = event["account_id"], event["post_id"]
            for name, level in event["metrics"].items():
                before = posts.get((account, post, name), 0)
                posts[account, post, name] = level
                sums[account, name] = sums.get((account, name), 0) + level - before
            yield update.at_ms, [CellChange(Cell(FOLD, account, name), number, sums[account, name]) for name in event["metrics"]]


def folded(events: Sequence[tuple[float, Record]]) -> list[Record]:
    """Return the folded records of events, in the order of emission (pure)."""
    open_groups: dict[str, tuple[float, float, dict[Cell, CellChange]]] = {}
    closed: list[tuple[float, Record]] = []
    for at_ms, changes in events:
        group = changes[0].cell.group_key
        since_ms, last_ms, names = open_groups.get(group, (at_ms, at_ms, {}))
        due_ms = min(last_ms + QUIET_MS, since_ms + HOLD_MS)
        if at_ms > due_ms:
            closed.append((due_ms, list(names.values())))
            since_ms, names = at_ms, {}
        open_groups[group] = since_ms, at_ms, names | {change.cell: change for change in changes}
    closed += [(last_ms + QUIET_MS, list(names.values())) for _, last_ms, names in open_groups.values()]
    return [changes for _, changes in sorted(closed, key=lambda one: one[0])]


def wide(records: int) -> list[Record]:
    """Return records of many groups with two names each; every group occurs more than once (pure)."""
    names = METRICS[:2]
    return [[CellChange(Cell(FOLD, f"wide_{n % WIDE_GROUPS}", name), n, n) for name in names] for n in range(records)]


@dataclass(slots=True)
class Written:
    """The result of one way of writing.

    Attributes:
        per_second: Records a second.
        writes: Rows or documents, as the server counts them.
        deleted: Number of replaced documents, which the server must merge away; None if the server has none.
    """

    per_second: int
    writes: int
    deleted: int | None


class Rival(ABC):
    """A store, and plain writes to the same server."""

    name: str
    shape = "cells"
    url: str

    @abstractmethod
    async def open(self) -> None:
        """Create the table of plain writes."""

    @abstractmethod
    async def plainly(self, records: Sequence[Record]) -> None:
        """Write each record on its own, with one acknowledgement for all."""

    @abstractmethod
    async def writes(self, table: str) -> int | None:
        """Return the rows or documents written so far, as the server counts them; None if it does not."""

    async def deleted(self, table: str) -> int | None:
        """Return the number of documents replaced so far."""
        return None

    @abstractmethod
    async def close(self) -> None:
        """End its connections."""

    async def batches(self, table: str, records: Sequence[Record], size: int) -> Written:
        """Write with the code of the store, this number of records at once."""
        store = open_store(self.settings(table))
        await store.initialise()
        begin, written = time.perf_counter(), 0
        for at in range(0, len(records), size):
            changes = newest(change for record in records[at : at + size] for change in record)
            counts = await store.apply(changes, CheckpointStep(PARTITION, at or None, min(at + size, len(records))), 0)
            written += counts.written
        seconds = time.perf_counter() - begin
        await store.close()
        counted = await self.writes(table)
        return Written(round(len(records) / seconds), written if counted is None else counted, await self.deleted(table))

    async def one_by_one(self, records: Sequence[Record], size: int) -> Written:
        """Write each record on its own, with one acknowledgement for several: this changes the speed, not the number of writes."""
        writes, deleted = await self.writes("plain") or 0, await self.deleted("plain")
        begin = time.perf_counter()
        for at in range(0, len(records), size):
            await self.plainly(records[at : at + size])
        per_second = round(len(records) / (time.perf_counter() - begin))
        after = await self.deleted("plain")
        replaced = None if after is None or deleted is None else after - deleted
        return Written(per_second, (await self.writes("plain") or 0) - writes, replaced)

    def settings(self, table: str) -> ReadStoreSettings:
        """Return the settings of a store with its own table."""
        return ReadStoreSettings.model_validate(
            {"name": "bench", "url": self.url, "table": table, "shape": self.shape, "folds": [FOLD], "source": "carried"}
        )


class SqliteRival(Rival):
    """A SQLite file with the settings of the store: WAL, ``synchronous = NORMAL``."""

    name = "SQLite"

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/read.db"
        self._folder = folder

    async def open(self) -> None:
        """See :class:`Rival`."""
        self._connection = sqlite3.connect(self._folder / "read.db", isolation_level=None)
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", PLAIN.format("")):
            self._connection.execute(statement)

    async def plainly(self, records: Sequence[Record]) -> None:
        """See :class:`Rival`."""
        self._connection.execute("BEGIN")
        for change in (change for record in records for change in record):
            self._connection.execute(UPSERT.format("?, ?, ?, ?, ?"), (*change.cell, change.value, change.version))
        self._connection.execute("COMMIT")

    async def writes(self, table: str) -> int | None:
        """Return the rows that the plain connection has changed; the store's connection is not queried."""
        return self._connection.total_changes if table == "plain" else None

    async def close(self) -> None:
        """See :class:`Rival`."""
        self._connection.close()


class PostgresRival(Rival):
    """A server with ``fsync``, as in production."""

    def __init__(self, server: PostgreSQL) -> None:
        self.url = server.url
        self.name = "PostgreSQL 18"

    async def open(self) -> None:
        """See :class:`Rival`."""
        self._connection = await asyncpg.connect(self.url)
        await self._connection.execute(PLAIN.format("JSONB"))

    async def plainly(self, records: Sequence[Record]) -> None:
        """See :class:`Rival`."""
        async with self._connection.transaction():
            for change in (change for record in records for change in record):
                row = (*change.cell, str(change.value), change.version)
                await self._connection.execute(UPSERT.format("$1, $2, $3, $4::jsonb, $5"), *row)

    async def writes(self, table: str) -> int | None:
        """See :class:`Rival`."""
        await self._connection.execute("SELECT pg_stat_force_next_flush()")
        row = "SELECT n_tup_ins + n_tup_upd FROM pg_stat_user_tables WHERE relname = $1"
        return int(await self._connection.fetchval(row, table) or 0)

    async def close(self) -> None:
        """See :class:`Rival`."""
        await self._connection.close()


class OpenSearchRival(Rival):
    """A server with one document for each group; an update replaces the document."""

    name = "OpenSearch 2.19"
    shape = "groups"

    def __init__(self, server: OpenSearch) -> None:
        self.url = server.url
        self._shape = Shape("groups", {})

    async def open(self) -> None:
        """See :class:`Rival`."""
        store = open_store(self.settings("plain"))
        await store.initialise()
        await store.close()
        self._client = OpenSearchClient(self.settings("plain"))

    async def plainly(self, records: Sequence[Record]) -> None:
        """See :class:`Rival`."""
        items = [item for record in records for item in self._shape.items(record, 0)]
        assert len(items) == len((await write_bulk(self._client, "plain", items)).taken)

    async def writes(self, table: str) -> int | None:
        """See :class:`Rival`."""
        return int((await self._stats(table))["indexing"]["index_total"])

    async def deleted(self, table: str) -> int | None:
        """Return the number of written documents that no longer exist, merged away or not."""
        stats = await self._stats(table)
        return int(stats["indexing"]["index_total"] - stats["docs"]["count"])

    async def close(self) -> None:
        """See :class:`Rival`."""
        await self._client.close()

    async def _stats(self, table: str) -> dict[str, Any]:
        await self._client.ask("POST", f"/{table}/_refresh")
        stats: dict[str, Any] = (await self._client.ask("GET", f"/{table}/_stats/docs,indexing"))["_all"]["primaries"]
        return stats


async def stores(scale: float) -> list[Finding]:
    """Measure each store in the three ways."""
    events = list(raw(round(EVENTS * scale)))
    records = folded(events)
    about = {"events": len(events), "folded_records": len(records), "folding_ratio": round(1 - len(records) / len(events), 3)}
    findings = [Finding("stores: the load", about)]
    with tempfile.TemporaryDirectory(prefix="streams-app-bench-") as folder:
        findings.append(await _compared(SqliteRival(Path(folder)), events, records))
    with PostgreSQL.start(options=("fsync=on",)) as postgresql:
        findings.append(await _compared(PostgresRival(postgresql), events, records))
    with OpenSearch.start() as opensearch:
        findings.append(await _compared(OpenSearchRival(opensearch), events, records))
    return findings


async def _compared(rival: Rival, events: Sequence[tuple[float, Record]], records: Sequence[Record]) -> Finding:
    await rival.open()
    folds = await rival.batches("folded", records, 1)
    each = await rival.one_by_one([changes for _, changes in events], MAX_RECORDS)
    batches, alone = await rival.batches("wide", wide(WIDE), MAX_RECORDS), await rival.one_by_one(wide(ALONE), 1)
    await rival.close()
    figures: dict[str, object] = {
        "writes_folded": folds.writes,
        "writes_of_raw_events": each.writes,
        "writes_saved": round(1 - folds.writes / each.writes, 3),
        "records_per_second_in_batches": batches.per_second,
        "records_per_second_one_by_one": alone.per_second,
        "times_faster": round(batches.per_second / alone.per_second, 1),
    }
    if folds.deleted is not None:
        figures |= {"deleted_documents_folded": folds.deleted, "deleted_documents_of_raw_events": each.deleted}
    return Finding(f"stores: {rival.name}", figures)
