"""Fills a read store with groups that have not changed since their fold began, so that no folded record names them.

Each input line is a JSON object with a group and some of its names, like a folded record. The current values of these names are
read from the value source of the store, and written with a version below that of every record. So a value that a worker writes
always wins, no matter which of the two is written first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson

from streams_app.clock import Clock
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.exact_json import decode, encode
from streams_app.fold import Fold
from streams_app.health.metrics import Metrics
from streams_app.operations.retrying import with_retries
from streams_app.read_store.core.errors import AccessDeniedError
from streams_app.read_store.core.store import check_formats
from streams_app.read_store.sync.store_sync import StoreSync, parts_of
from streams_app.settings import ReadStoreSettings, Settings

LINES: Final = 500
"""Maximum number of lines in one batch."""


@dataclass(slots=True)
class FillResult:
    """Counts of a fill.

    Attributes:
        lines: Number of lines, without empty ones.
        rejected: Number of lines that are invalid, or that the store cannot hold completely.
    """

    lines: int = 0
    rejected: int = 0


@dataclass(slots=True)
class _Line:
    """Input line with the attributes of an output record; the offset is the line number."""

    offset: int
    value: bytes | None
    key: bytes | None = b"-"
    timestamp: int | None = None


class Fill:
    """Writes the current values of listed groups of one fold into one read store."""

    def __init__(
        self,
        settings: Settings,
        declared: ReadStoreSettings,
        fold: str | None,
        clock: Clock,
        *,
        on_rejected: Callable[[int, str], None] = lambda *_: None,
        on_progress: Callable[[str, int, int | None], None] = lambda *_: None,
    ) -> None:
        """Prepare a fill, without connecting.

        Args:
            fold: Fold of the groups; None if the store has only one.
            on_rejected: Called with the number of a rejected line and the reason.
            on_progress: Called with a message, the number of lines read so far, and None, because their total is unknown.

        Raises:
            ConfigurationError: The store has no value source, or it does not have this fold. Or ``fold`` is None, and the store has
                several folds.
        """
        if declared.source == "carried":
            carried = f'{declared.section}.source = "carried": values are in the records alone, there is no source to be asked'
            raise ConfigurationError([carried])
        if fold is None and len(declared.folds) > 1:
            raise ConfigurationError([f"{declared.section} has several folds ({', '.join(declared.folds)}): name one with --fold"])
        if fold is not None and fold not in declared.folds:
            raise ConfigurationError([f"{declared.section} has no fold {fold!r}; it has {', '.join(declared.folds)}"])
        self.done = FillResult()
        self._fold: Fold = settings.fold(fold or declared.folds[0])
        self._sync = StoreSync(settings, declared, Metrics(settings), clock)
        self._on_rejected = on_rejected
        self._on_progress = on_progress

    async def run(self, lines: Iterable[bytes]) -> FillResult:
        """Write the current values of the groups and names in the lines. A run may be repeated, as it overwrites no newer value.

        Invalid lines are counted and passed to ``on_rejected``.

        Args:
            lines: JSON objects with the group fields and the changed field of the fold.

        Raises:
            TryAgainError: The store or its source does not answer; earlier lines have been written.
        """
        try:
            check_formats(self._sync.store_name, await with_retries(self._sync.store.checkpoints))
            for batch in _batches(self._records(lines)):
                for part in parts_of(batch):
                    rejected = await with_retries(
                        partial(self._sync.replay_records, self._fold.output, part, ignores_versions=True)
                    )
                    for one in sorted(rejected, key=lambda one: one.record.offset):
                        self._reject(one.record.offset, one.detail)
                self._on_progress(f"{self.done.lines:,} lines taken", self.done.lines, None)
        except TryAgainError as error:
            kind = AccessDeniedError if isinstance(error, AccessDeniedError) else TryAgainError
            raise kind(f"{error}; stopped before line {self.done.lines + 1:,} at the latest, run it again") from error
        finally:
            await self._sync.close()
        return self.done

    def _reject(self, number: int, why: str) -> None:
        self.done.rejected += 1
        self._on_rejected(number, why)

    def _records(self, lines: Iterable[bytes]) -> Iterator[_Line]:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            self.done.lines += 1
            try:
                given: Any = decode(line)
            except orjson.JSONDecodeError:
                self._reject(number, "not JSON")
                continue
            if isinstance(given, dict):
                given["fold"] = {"name": self._fold.name, "version": 0}
            try:
                json = encode(given)
            except orjson.JSONEncodeError:  # orjson reads deeper nesting than it writes
                self._reject(number, "nested too deeply")
                continue
            yield _Line(number, json)


def _batches(records: Iterator[_Line]) -> Iterator[list[_Line]]:
    batch: list[_Line] = []
    for record in records:
        batch.append(record)
        if len(batch) == LINES:
            yield batch
            batch = []
    if batch:
        yield batch
