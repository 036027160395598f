"""The read store in a simulation: its processors, and a SQLite file behind a simulated network."""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from unittest.mock import patch

from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.delivery.processor import Processors
from streams_app.errors import TryAgainError
from streams_app.health.metrics import Metrics
from streams_app.health.outage_reporter import OutageReporter
from streams_app.read_store.core.store import CheckpointStep
from streams_app.read_store.sqlite.store import SqliteStore
from streams_app.read_store.sync.dead_letters import OutputRecord
from streams_app.read_store.sync.processor import StoreProcessors
from streams_app.read_store.sync.store_sync import StoreSync, SyncResult, parts_of
from streams_app.settings import Settings
from tests.simulation.ledger import positions_in

if TYPE_CHECKING:
    from tests.simulation.worker import Worker
    from tests.simulation.world import World

T = TypeVar("T")

NAME = "sqlite"

MAX_LOST = 12
"""Maximum number of its latest transactions that a server may lose."""


@dataclass(slots=True)
class Folded:
    """An event of the simulated log as a folded record that changes a name used by no other event."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None

    @classmethod
    def of(cls, offset: int) -> Folded:
        """Return the record of an event, with its offset as value."""
        value = {"a": "g", "m": {f"n{offset}": offset}, "fold": {"name": "f", "version": offset}}
        return cls(offset, None, b"g", json.dumps(value).encode())


class _FoldedSync(StoreSync):
    """Reads every event as a folded record."""

    async def sync_once(self, step: CheckpointStep, records: Sequence[OutputRecord]) -> SyncResult:
        return await super().sync_once(step, [Folded.of(record.offset) for record in records])


class StoreLedger:
    """Checks that everything up to the store's progress, and up to the commit, is in the store.

    Attributes:
        records: Number of values in the store.
        highest: Name → highest offset ever committed.
        ever: Values that were in the store at some time: values that the server has lost since may have been committed.
        copies: The latest states of the store, the oldest first.
    """

    def __init__(self, world: World, connection: sqlite3.Connection) -> None:
        self._world = world
        self._connection = connection
        self.records = 0
        self.highest: dict[str, int] = {}
        self.ever: set[int] = set()
        self.copies: deque[sqlite3.Connection] = deque([_copy(connection)], maxlen=MAX_LOST)

    def stored(self) -> set[int]:
        """Return the offsets whose values are in the store."""
        return {value for (value,) in self._connection.execute("SELECT value FROM cells")}

    def missing(self, below: int) -> list[int]:
        """Return the events whose values are not in the store."""
        return self._without(self.stored(), below)

    def _without(self, stored: set[int], below: int) -> list[int]:
        entries = self._world.log.entries
        return [offset for offset in range(below) if entries[offset] and offset not in stored]

    def on_write(self) -> None:
        """Handle a write of the store."""
        stored = self.stored()
        self.records = len(stored)
        self.ever |= stored
        self.copies.append(_copy(self._connection))
        for (progress,) in self._connection.execute("SELECT next_offset FROM cells_progress").fetchall():
            if missing := self.missing(progress):
                self._world.report_fault("progress", f"the store continues at {progress}, but lacks {missing}")

    def on_commit(self, before: PartitionCommit | None, commit: PartitionCommit, claimed_at: int) -> None:
        """Check a commit that the coordinator has accepted."""
        self.highest[NAME] = positions_in(commit)[NAME]
        if missing := self._without(self.ever, self.highest[NAME]):
            self._world.report_fault("commit", f"committed {commit}, the store never had {missing}")


def _copy(connection: sqlite3.Connection) -> sqlite3.Connection:
    copy = sqlite3.connect(":memory:", isolation_level=None)
    connection.backup(copy)
    return copy


class _Connection:
    """Replaces :class:`streams_app.read_store.sqlite.connection.SqliteThread` by a remote store that may be down."""

    def __init__(self, worker: Worker, connection: sqlite3.Connection, ledger: StoreLedger) -> None:
        self._worker = worker
        self._connection = connection
        self._ledger = ledger

    async def call(self, function: Callable[[sqlite3.Connection], T], *, mode: str = "rw") -> T:
        """Execute a transaction; if its caller dies meanwhile, it may or may not take place."""

        def arrive() -> T:
            try:
                done = function(self._connection)
            finally:
                if self._connection.in_transaction:
                    self._connection.rollback()
            self._ledger.on_write()
            return done

        return await self._worker.call(arrive, TryAgainError, name="store", may_be_late=True)


class Syncing:
    """See :class:`tests.simulation.subject.Subject`."""

    is_exact = False
    release_seconds = 4.0
    reclaim_seconds = 0.0

    def __init__(self, world: World) -> None:
        """Create a store for this schedule, without state in Redis."""
        self.keys = {NAME: [f"{{{world.app_id}}}:nothing".encode()]}
        self._world = world
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._settings = Settings.model_validate({
            "app_id": world.app_id,
            "folds": [{"name": "f", "source": "events", "output": world.log.tp.topic, "group_key": "a", "changed": "m",
                       "keep": "last", "quiet_period": "1s"}],
            "read_stores": [{"name": NAME, "url": "sqlite:///remote.db", "table": "cells", "folds": ["f"], "source": "carried"}],
        })  # fmt: skip
        SqliteStore("sqlite:///remote.db", "cells", NAME)._initialise(self._connection)
        self.ledger = StoreLedger(world, self._connection)

    @contextmanager
    def limits(self, seed: int) -> Iterator[None]:
        """Limit transactions to a few records."""
        with patch("streams_app.read_store.sync.processor.parts_of", partial(parts_of, max_records=1 + seed % 3)):
            yield
        for connection in (self._connection, *self.ledger.copies):
            connection.close()

    def processors(self, worker: Worker) -> Processors:
        """Return the processors of one process, with its own connection to the store."""
        sync = _FoldedSync(self._settings, self._settings.read_store(NAME), Metrics(self._settings), worker.clock)
        sync.store._thread = _Connection(worker, self._connection, self.ledger)  # type: ignore[attr-defined]  # a remote store
        return StoreProcessors(sync, OutageReporter("read store sync"))

    def token(self, args: Sequence[Any]) -> bytes:
        """No script is run."""
        return b""

    def runs(self, name: str, keys: Sequence[str]) -> None:
        """No script is run."""

    def ran(self, name: str, keys: Sequence[str], args: Sequence[Any], reply: Any) -> bool:
        """No script is run."""
        return False

    def fail_over(self) -> None:
        """Replace the server of the store by one that lacks the latest transactions."""
        self._world.rng.choice(self.ledger.copies).backup(self._connection)

    def is_whole(self) -> bool:
        """Whether every value is in the store."""
        return not self.ledger.missing(self._world.log.end)

    def state(self, name: str) -> Any:
        """Return its progress."""
        return self._connection.execute("SELECT topic, partition, next_offset FROM cells_progress").fetchall()

    def check_end(self) -> None:
        """Check that the store has every event, and nothing else."""
        stored, log = self.ledger.stored(), self._world.log
        wrong = stored ^ {offset for offset, entry in enumerate(log.entries) if entry}
        if wrong:
            self._world.report_fault("lost", f"{sorted(wrong)} are missing or invented")
