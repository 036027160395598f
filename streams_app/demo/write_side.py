"""The service that owns the post metrics: a SQLite table that is written before each event is produced.

The read store takes its values from this table: a metric of an account is the SUM over the posts of the account. The same sums are
also computed in memory from the events. They are the expected content of the read store at the end.
"""

from __future__ import annotations

import math
import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from streams_app.codec import MAX_SAFE_INTEGER, canonical_bytes
from streams_app.demo.load import Update
from streams_app.fold import Fold
from streams_app.folding.reading.reader import EventReader, decode_all
from streams_app.formatting import shown
from streams_app.settings import Limits

CREATE: Final = """
CREATE TABLE post_metrics (
    account_id TEXT NOT NULL, post_id TEXT NOT NULL, metric TEXT NOT NULL, value NUMERIC NOT NULL,
    PRIMARY KEY (account_id, metric, post_id)
) WITHOUT ROWID
"""
UPSERT: Final = """
INSERT INTO post_metrics (account_id, post_id, metric, value) VALUES (?, ?, ?, ?)
ON CONFLICT (account_id, metric, post_id) DO UPDATE SET value = excluded.value
"""
SUM: Final = """
SELECT account_id, metric, SUM(value) FROM post_metrics
WHERE account_id IN (SELECT value FROM json_each(:groups)) AND metric IN (SELECT value FROM json_each(:names))
GROUP BY account_id, metric
"""

Number = int | float
CellKey = tuple[str, str, str]
"""Key of a post metric: account, post, and name of the metric."""


@dataclass(slots=True)
class WriteSideEvent:
    """An event with the attributes of a record that :class:`.EventReader` needs."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None


class WriteSide:
    """Writes the metrics of each post to a SQLite table, and sums them by account in memory: what the read store has to contain.

    Attributes:
        rejected: Number of events that cannot be folded.
    """

    def __init__(self, path: Path, fold: Fold, limits: Limits) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = OFF")  # the database is removed with the demo
        self._connection.execute(CREATE)
        self._reader = EventReader(fold, limits)
        self._limits = limits
        self._numbers: dict[CellKey, Number] = {}
        self.rejected = 0

    def write(self, updates: Sequence[Update]) -> None:
        """Write the metrics of events in one transaction. Events that cannot be folded are counted, and change nothing."""
        raws = [WriteSideEvent(position, 0, update.key, update.value) for position, update in enumerate(updates)]
        decoded = decode_all(raws, self._limits)
        reading = self._reader.read(raws, decoded)
        self.rejected += len(reading.rejected)
        rows: dict[CellKey, Number] = {}
        for event in reading.events:
            account = canonical_bytes(event.group).decode()
            value = decoded[event.offset]
            post = str(value.get("post_id", "")) if isinstance(value, dict) else ""
            for name, level in event.changed.items():
                key = account, post, name
                rows[key] = self._numbers[key] = self._number(key, level)
        self._connection.execute("BEGIN")
        self._connection.executemany(UPSERT, [(*key, number) for key, number in rows.items()])
        self._connection.execute("COMMIT")

    def expected(self) -> dict[tuple[str, str], Number]:
        """Return the expected value of each (account, metric)."""
        sums: dict[tuple[str, str], Number] = defaultdict(int)
        for (account, _, name), number in self._numbers.items():
            sums[account, name] += number
        return dict(sums)

    def close(self) -> None:
        self._connection.close()

    def _number(self, key: CellKey, level: Any) -> Number:
        if type(level) is float or (type(level) is int and abs(level) <= MAX_SAFE_INTEGER):
            return level
        # A value that is not a number is replaced by the number of changes of its name.
        return self._numbers.get(key, 0) + 1


def differences(path: Path, table: str, expected: Mapping[tuple[str, str], Number]) -> list[str]:
    """Compare the read store with the result of :meth:`WriteSide.expected`; return a sentence for each difference."""
    connection = sqlite3.connect(path)
    try:
        rows = connection.execute(f'SELECT group_key, name, value FROM "{table}"').fetchall()  # settings check the table name
    finally:
        connection.close()
    stored = {(group, name): value for group, name, value in rows}
    found = [
        f"{shown(group)}.{shown(name)}: the read store has {stored.get((group, name))!r}, the events give {number}"
        for (group, name), number in expected.items()
        if not _is_same(stored.get((group, name)), number)
    ]
    unknown = stored.keys() - expected.keys()
    return found + [f"{shown(group)}.{shown(name)}: in the read store, but in no event" for group, name in unknown]


def _is_same(stored: Any, number: Number) -> bool:
    """Return whether two sums are equal. Sums of floats may differ slightly, because they depend on the order of the terms."""
    return type(stored) in (int, float) and (stored == number or math.isclose(stored, number, rel_tol=1e-9))
