"""The subscriber of the demo: recomputes the score of an account from the write database, once for each folded record.

Some attempts fail and are retried, as if a service were busy. The subscriber stores its results in a database of its own, which the
check at the end reads. The worker imports this module, and finds the folder of the databases in an environment variable.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from streams_app import Catalogue, Received, Retries, records_of, subscriber
from streams_app.demo.stage import DEMO_FOLDER, FOLD
from streams_app.formatting import counted, shown

BUSY_EVERY: Final = 10
"""About one of this many records fails at its first attempt; a hash of the record id decides which ones."""

CREATE: Final = """
CREATE TABLE scores (account TEXT PRIMARY KEY, score NUMERIC, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE attempts (fold_id TEXT NOT NULL, attempt INTEGER NOT NULL, is_done INTEGER NOT NULL);
"""
SCORE: Final = """
INSERT INTO scores VALUES (?1, (SELECT SUM(value) FROM source.post_metrics WHERE account_id = ?1), ?2)
ON CONFLICT (account) DO UPDATE SET score = excluded.score, version = excluded.version WHERE version < excluded.version
"""


class RecomputedRecord(msgspec.Struct, frozen=True):
    """Payload without fields, because the subscriber needs only the key and version of a folded record."""


class ServiceBusyError(Exception):
    """The simulated service that computes the score is busy, so that the attempt is retried."""


class RecomputeResult(NamedTuple):
    """Results of the demo's subscriber: handled records, failed attempts and scores.

    Attributes:
        scores: Score of each account: the number that the subscriber computes for it, not the time of an event.
    """

    ids: frozenset[str]
    retried: int
    scores: dict[str, int | float]


@contextmanager
def connected(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open the database of the subscriber for the ``with`` block, and attach the write database. Commit at the end of the block."""
    with closing(sqlite3.connect(folder / "scores.db", timeout=30)) as connection:
        connection.execute("PRAGMA synchronous = OFF")  # the database is removed with the demo
        connection.execute("ATTACH DATABASE ? AS source", (str(folder / "write.db"),))
        with connection:
            yield connection


def prepare(folder: Path) -> None:
    """Create the database ``scores.db``, in which the subscriber stores scores and attempts."""
    with closing(sqlite3.connect(folder / "scores.db")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(CREATE)


def recomputed(folder: Path) -> RecomputeResult:
    """Return the results of the subscriber so far."""
    with connected(folder) as connection:
        ids = connection.execute("SELECT fold_id FROM attempts WHERE is_done").fetchall()
        (retried,) = connection.execute("SELECT COUNT(*) FROM attempts WHERE NOT is_done").fetchone()
        scores = dict(connection.execute("SELECT account, score FROM scores").fetchall())
    return RecomputeResult(frozenset(fold_id for (fold_id,) in ids), retried, scores)


def undone(records: Collection[str], expected: Mapping[tuple[str, str], int | float], done: RecomputeResult) -> list[str]:
    """Return a sentence for each fault in the results of the subscriber: records that it missed, unknown records, wrong scores.

    ``records`` are the ids of the folded records; ``expected`` has the value of each (account, metric).
    """
    missing, unknown = set(records) - done.ids, done.ids - set(records)
    faults = [f"{counted(len(missing), 'folded record')} not done by the subscriber"] if missing else []
    faults += [f"{counted(len(unknown), 'record')} processed by the subscriber, but never folded"] if unknown else []
    scores: dict[str, int | float] = defaultdict(int)
    for (account, _), value in expected.items():
        scores[account] += value
    return faults + [
        f"{shown(account)}: the subscriber has the score {done.scores.get(account)!r}, the events give {score}"
        for account, score in scores.items()
        if not math.isclose(done.scores.get(account, math.nan), score, rel_tol=1e-9)
    ]


@subscriber(
    records_of(FOLD, RecomputedRecord),
    idempotent="yes",
    ordered="key",
    description="Recomputes the score of an account.",
    concurrency=4,
    retry=Retries(attempts=8, first="200ms"),
)
def recompute(event: Received[RecomputedRecord]) -> None:
    """Recompute the score of an account from the write database and store it; an older version never overwrites a newer one."""
    is_busy = event.attempt == 1 and crc32(event.id.encode()) % BUSY_EVERY == 0
    with connected(Path(os.environ[DEMO_FOLDER])) as connection:
        if not is_busy:
            connection.execute(SCORE, (event.key, event.version))
        connection.execute("INSERT INTO attempts VALUES (?, ?, ?)", (event.id, event.attempt, not is_busy))
    if is_busy:
        raise ServiceBusyError("the score service was busy")


catalogue = Catalogue(events=(), subscribers=(recompute,))
