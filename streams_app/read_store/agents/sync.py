"""One pass of the read store: a batch of folded records in, current values out, one transaction.

Touches the source and the store, never Kafka: the agent brings the records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.metrics import Metrics
from streams_app.read_store.core.merge import Change, newest
from streams_app.read_store.core.record import Expected, Rejected, parse
from streams_app.read_store.sources.choice import open_source
from streams_app.read_store.targets.choice import open_store
from streams_app.read_store.targets.port import Step
from streams_app.settings import ReadStoreSettings, Settings

logger = logging.getLogger(__name__)

MAX_RECORDS: Final = 500
MAX_BYTES: Final = 1_000_000
"""Of the values of a batch: bounds the query and the time the store is locked; a single record may be larger."""


class Record(Protocol):
    """What is used of a record of an output topic; ``timestamp`` in milliseconds, below 0 or None where it has none."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What one pass did.

    Attributes:
        records: How many were read.
        rejected: Records that are not folded records of the fold of their topic.
        cells: Distinct (fold, group, name) among them.
        written: Cells with a new value.
        stale: Cells for which the store knew a newer version.
        unchanged: Cells that held the value already.
        next_offset: What the store goes on with from now on.
        refused: Cells with something that the store can never hold; they are told and left as they are.
    """

    records: int
    rejected: int
    cells: int
    written: int
    stale: int
    unchanged: int
    next_offset: int
    refused: int = 0


class Sync:
    """Brings one store up to date with what records announce.

    Attributes:
        store_name: The metric label ``store``.
    """

    def __init__(self, settings: Settings, store: ReadStoreSettings, metrics: Metrics, clock: Clock) -> None:
        """Opens nothing yet.

        Args:
            settings: Of the application.
            store: The store that is kept in sync.
            metrics: Where its writes are counted.
            clock: For the column ``updated_ms``.

        Raises:
            ConfigurationError: The store or its source cannot be used.
        """
        self.store_name = store.name
        self._source = open_source(store)
        self._store = open_store(store)
        self._metrics = metrics
        self._clock = clock
        self._expected = {
            fold.output: Expected(fold.name, fold.changed_field, fold.group_fields, self._source.carries_values)
            for fold in map(settings.fold, store.folds)
        }

    @property
    def topics(self) -> tuple[str, ...]:
        """Output topics to be read."""
        return tuple(self._expected)

    async def progress(self) -> dict[TP, int]:
        """Where to go on.

        Raises:
            TryAgainError: The store is away.
        """
        return await self._store.progress()

    async def begin(self, tp: TP, offset: int) -> None:
        """Sets where to go on with a partition whose log is another one now.

        Raises:
            TryAgainError: The store is away.
        """
        await self._store.begin(tp, offset, self._clock.now_ms())

    async def sync_once(self, step: Step, records: Sequence[Record]) -> SyncResult:
        """One batch, whole or not at all; can be repeated.

        The source is read after the records, so its values are at least as new as the versions they are written under.

        Args:
            step: Which partition of an output topic, where the store stands, and where it stands then.
            records: Records of the partition in the order of their offsets; without any only the progress is noted.

        Raises:
            ProgressError: The store stands elsewhere; nothing was written.
            TryAgainError: Source or store is away; nothing was written.
        """
        changes: list[Change] = []
        rejected: list[tuple[Record, str]] = []
        for record in records:
            parsed = parse(record.key, record.value, self._expected[step.tp.topic])
            if isinstance(parsed, Rejected):
                rejected.append((record, parsed.why))
            else:
                changes.extend(parsed)
        latest = newest(changes)
        current = await self._source.current(latest) if latest else []
        refused = {change.cell: why for change in current if (why := self._store.refusal(change))}
        taken = [change for change in current if change.cell not in refused]
        counts = await self._store.apply(taken, step, self._clock.now_ms())
        self._report(step.tp, rejected)
        if refused:
            logger.error(
                "values skipped: the store can never hold them store=%s count=%d source=%s first_offset=%d first_why=%s",
                self.store_name, len(refused), step.tp, records[0].offset, next(iter(refused.values())),
            )  # fmt: skip
        for result in ("written", "stale", "unchanged"):
            self._metrics.read_store_writes.labels(self.store_name, result).inc(getattr(counts, result))
        return SyncResult(
            len(records), len(rejected), len(latest), counts.written, counts.stale, counts.unchanged, step.to, len(refused)
        )

    async def close(self) -> None:
        """Interrupts what is under way and closes source and store."""
        await self._source.close()
        await self._store.close()

    def _report(self, tp: TP, rejected: Sequence[tuple[Record, str]]) -> None:
        if rejected:
            record, why = rejected[0]
            logger.warning(
                "records skipped: not folded records store=%s count=%d source=%s first_offset=%d first_why=%s",
                self.store_name, len(rejected), tp, record.offset, why,
            )  # fmt: skip


def steps(records: Sequence[Record], max_records: int = MAX_RECORDS, max_bytes: int = MAX_BYTES) -> Iterator[list[Record]]:
    """Cuts what was fetched into batches, in order; none is empty.

    Args:
        records: What was fetched.
        max_records: Number of records in one batch, at most.
        max_bytes: Values of one batch; a larger record is a batch of its own.
    """
    step: list[Record] = []
    used_bytes = 0
    for record in records:
        size = len(record.value or b"")
        if step and (len(step) >= max_records or used_bytes + size > max_bytes):
            yield step
            step, used_bytes = [], 0
        step.append(record)
        used_bytes += size
    if step:
        yield step
