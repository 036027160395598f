"""The read store in a simulation: its processors, and a SQLite file that a worker reaches over a wire."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from unittest.mock import patch

from streams_app.delivery.batch import TP
from streams_app.delivery.commits import Committed
from streams_app.delivery.processor import Processors
from streams_app.errors import TryAgainError
from streams_app.metrics import Metrics
from streams_app.patience import Patience
from streams_app.read_store.agents.processor import StoreProcessors
from streams_app.read_store.agents.sync import Record, Sync, SyncResult, steps
from streams_app.read_store.targets.sqlite import SqliteStore
from streams_app.settings import Settings
from tests.chaos.simulation_ledger import marks_in

if TYPE_CHECKING:
    from tests.chaos.simulation import World
    from tests.chaos.simulation_worker import Worker

T = TypeVar("T")

NAME = "sqlite"


@dataclass(slots=True)
class Folded:
    """An event of the simulated log as a folded record: it changes a name of its own."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None

    @classmethod
    def of(cls, offset: int) -> Folded:
        """Its value is its offset."""
        value = {"a": "g", "m": {f"n{offset}": offset}, "fold": {"name": "f", "version": offset}}
        return cls(offset, None, b"g", json.dumps(value).encode())


class _FoldedSync(Sync):
    """Reads every event as a folded record."""

    async def sync_once(self, tp: TP, records: Sequence[Record], next_offset: int) -> SyncResult:
        return await super().sync_once(tp, [Folded.of(record.offset) for record in records], next_offset)


class StoreLedger:
    """Checks that what the store calls its progress, and what is committed, is in the store.

    Attributes:
        records: Values that are in the store.
        highest: Name → highest mark ever committed.
    """

    def __init__(self, world: World, connection: sqlite3.Connection) -> None:
        self._world = world
        self._connection = connection
        self.records = 0
        self.highest: dict[str, int] = {}

    def stored(self) -> set[int]:
        """Offsets whose values are there."""
        return {value for (value,) in self._connection.execute("SELECT value FROM cells")}

    def missing(self, below: int) -> list[int]:
        """Events whose values are not there."""
        entries, stored = self._world.log.entries, self.stored()
        return [offset for offset in range(below) if entries[offset] and offset not in stored]

    def on_write(self) -> None:
        """The store has done something."""
        self.records = len(self.stored())
        for (progress,) in self._connection.execute("SELECT next_offset FROM cells_progress").fetchall():
            if missing := self.missing(progress):
                self._world.tell("progress", f"the store goes on at {progress}, and has nothing of {missing}")

    def on_commit(self, before: Committed | None, mark: Committed, claimed_at: int) -> None:
        """The coordinator has taken a commit."""
        self.highest[NAME] = marks_in(mark)[NAME]
        if missing := self.missing(self.highest[NAME]):
            self._world.tell("commit", f"committed {mark}, the store has nothing of {missing}")


class _Wire:
    """In the place of :class:`streams_app.read_store.databases.sqlite_thread.SqliteThread`: a store elsewhere, that may be away."""

    def __init__(self, worker: Worker, connection: sqlite3.Connection, ledger: StoreLedger) -> None:
        self._worker = worker
        self._connection = connection
        self._ledger = ledger

    async def call(self, function: Callable[[sqlite3.Connection], T], *, mode: str = "rw") -> T:
        """A transaction that is on its way when its caller dies takes place all the same, or does not."""

        def arrive() -> T:
            done = function(self._connection)
            self._ledger.on_write()
            return done

        return await self._worker.call(arrive, TryAgainError, name="store", may_be_late=True)


class Reading:
    """See :class:`tests.chaos.simulation_subject.Subject`."""

    def __init__(self, world: World) -> None:
        """A store of this schedule alone; Redis has nothing of it."""
        self.keys = {NAME: [f"{{{world.app_id}}}:nothing".encode()]}
        self._world = world
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._settings = Settings.model_validate({
            "app_id": world.app_id,
            "folds": [{"name": "f", "source": "events", "output": world.log.tp.topic, "group_key": "a", "changed": "m",
                       "keep": "last", "quiet_period": "1s"}],
            "read_stores": [{"name": NAME, "url": "sqlite:///elsewhere.db", "table": "cells", "folds": ["f"], "source": "carried"}],
        })  # fmt: skip
        SqliteStore("sqlite:///elsewhere.db", "cells", NAME)._initialise(self._connection)
        self.ledger = StoreLedger(world, self._connection)

    @contextmanager
    def limits(self, seed: int) -> Iterator[None]:
        """Few records a transaction."""
        with patch("streams_app.read_store.agents.processor.steps", partial(steps, max_records=1 + seed % 3)):
            yield
        self._connection.close()

    def processors(self, worker: Worker) -> Processors:
        """As one process makes them, with its own wire to the store."""
        sync = _FoldedSync(self._settings, self._settings.read_store(NAME), Metrics(self._settings), worker.clock)
        sync._store._thread = _Wire(worker, self._connection, self.ledger)  # type: ignore[attr-defined]  # a store elsewhere
        return StoreProcessors(sync, Patience("read store sync"))

    def token(self, args: Sequence[Any]) -> bytes:
        """No script is run."""
        return b""

    def runs(self, name: str, keys: Sequence[str]) -> None:
        """No script is run."""

    def ran(self, name: str, keys: Sequence[str], args: Sequence[Any], reply: Any) -> bool:
        """No script is run."""
        return False

    def is_whole(self) -> bool:
        """Everything is there."""
        return not self.ledger.missing(self._world.log.end)

    def state(self, name: str) -> Any:
        """Its progress."""
        return self._connection.execute("SELECT topic, partition, next_offset FROM cells_progress").fetchall()

    def check_end(self) -> None:
        """Every event is in the store, and nothing else."""
        stored, log = self.ledger.stored(), self._world.log
        wrong = stored ^ {offset for offset, entry in enumerate(log.entries) if entry}
        if wrong:
            self._world.tell("lost", f"{sorted(wrong)} are missing or invented")
