"""Writes the current values for a batch of folded records to a store, and the checkpoint after the batch.

The values are written in one transaction with the checkpoint, or in several transactions if one would exceed the timeout. Syncing
uses the source, the store and the dead-letter topic; the agent reads the records from Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.delivery.rejected_event import RejectedEvent
from streams_app.health.metrics import STORE_RESULTS, Metrics
from streams_app.read_store.core.absent_values import AbsentValues
from streams_app.read_store.core.merge import BEFORE_RESET, Cell, CellChange, newest, with_the_rest
from streams_app.read_store.core.record import ExpectedRecords, RejectedRecord, parse
from streams_app.read_store.core.store import CheckpointStep, Counts, NotStorableError, former_end_of, replays_of, reset_of
from streams_app.read_store.registry import open_store
from streams_app.read_store.sync.batch_writer import BatchWriter
from streams_app.read_store.sync.current_values import CurrentValues
from streams_app.read_store.sync.dead_letters import (
    OutputRecord,
    ParsedRecord,
    StoreDeadLetterWriter,
    as_not_a_record,
    as_not_storable,
)
from streams_app.settings import ReadStoreSettings, Settings

logger = logging.getLogger(__name__)

MAX_RECORDS: Final = 500
MAX_BYTES: Final = 1_000_000
"""Maximum size of the values of a batch, in bytes. It bounds the query, and the time of a lock in the store. A single record may be
larger."""


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The result of syncing one batch.

    Attributes:
        records: Number of records that were synced or became dead letters; they are the first records of the batch.
        rejected: Number of records that are not folded records of the fold of their topic; they became dead letters.
        cells: Number of distinct cells to be written. They include all stored cells of deleted groups, but no cells for which the
            source fails.
        next_offset: Checkpoint of the store after the batch.
        unstorable: Number of changes that the store can never hold, or for which the source fails; their records became dead
            letters.
    """

    records: int
    rejected: int
    cells: int
    written: int
    stale: int
    unchanged: int
    next_offset: int
    unstorable: int = 0


class StoreSync:
    """Keeps one read store in sync with the output of its folds.

    Records that cannot be stored, as a whole or in part, become dead letters.
    """

    def __init__(self, settings: Settings, store: ReadStoreSettings, metrics: Metrics, clock: Clock) -> None:
        self.store_name = store.name
        self._source = CurrentValues(store, clock)
        self._absent = AbsentValues()
        self.store = open_store(store)
        self._writer = BatchWriter(self.store, store, clock)
        self._dead_letters = StoreDeadLetterWriter(settings, store, metrics, clock)
        self._metrics = metrics
        self._clock = clock
        self._expected = {
            fold.output: ExpectedRecords(fold.name, fold.changed_field, fold.group_fields, self._source.carries_values)
            for fold in map(settings.fold, store.folds)
        }

    @property
    def topics(self) -> tuple[str, ...]:
        """Output topics of the folds with which the store is kept in sync."""
        return tuple(self._expected)

    async def set_checkpoint(self, tp: TP, offset: int, other_from: int | None = None) -> None:
        """Set the checkpoint of a partition in the store, and forget its acknowledged dead letters.

        Args:
            offset: The new checkpoint, which may be lower than the current one.
            other_from: Offset from which the log differs from the one that was read before. Records from this offset on count as
                newer than the last reset of their fold. None means that the log does not differ.
        """
        former_end = (await self.store.checkpoints()).get(former_end_of(tp), 0)
        if other_from is not None and other_from < former_end:
            await self.store.set_checkpoint(former_end_of(tp), other_from, self._clock.now_ms())
        await self.store.set_checkpoint(tp, offset, self._clock.now_ms())
        self._dead_letters.forget_below(tp)

    def count_removed_records(self, records: int) -> None:
        """Add to the metric of the records that retention removed before they were synced."""
        self._metrics.read_store_known_loss_records.labels(self.store_name).inc(records)

    async def sync_once(self, step: CheckpointStep, records: Sequence[OutputRecord]) -> SyncResult:
        """Sync one batch, or as many of its records as source and store can finish within their timeouts. The call can be repeated.

        The source is queried after the records were read, so its values are at least as new as the versions of the records.

        Args:
            records: Records of the partition in the order of their offsets; if there are none, only the checkpoint is written.

        Returns:
            The result; records from its ``next_offset`` on were not synced.

        Raises:
            CheckpointError: The checkpoint is not the one that ``step`` expects; some values and dead letters may be written.
            TooSlowError: Source or store exceeded the timeout; the next call uses smaller batches.
            TryAgainError: Source, store or broker is unavailable; some of the values and dead letters may be written.
        """
        taken = self._within_size(step.tp.topic, records)
        if len(taken) < len(records):
            step, records = step._replace(to=records[len(taken)].offset), taken
        if self._most is not None and step.after is None and records:
            # A record may need several transactions, for which the store must have a checkpoint: this step only writes it.
            step, records = step._replace(to=records[0].offset), []
        read, rejected = self._parsed(step.tp.topic, records)
        current, failed = await self._current(read)

        async def keep(unstorable: list[RejectedEvent]) -> None:
            await self._keep(step.tp, [*rejected, *unstorable])

        counts, unstorable = await self._apply(step, read, current, failed, keep)
        self._dead_letters.forget_below(step.tp, step.to)
        cells = {change.cell for change in current}
        return SyncResult(
            len(records), len(rejected), len(cells), counts.written, counts.stale, counts.unchanged, step.to,
            len(unstorable) + len(failed),
        )  # fmt: skip

    async def replay_records(
        self, topic: str, records: Sequence[OutputRecord], *, ignores_versions: bool = False, dry_run: bool = False
    ) -> list[RejectedEvent]:
        """Write records that became dead letters, without changing the checkpoint of their partitions.

        The version guard rejects values that are older than those in the store, so a replay can be repeated. Each replay increments
        a counter in the store, by which a rebuild that runs at the same time detects the replay.

        Args:
            ignores_versions: Whether to ignore the versions of the records, for example because the fold was reset after the
                records were folded. Current values are then written only to cells for which no record was folded since the last
                reset. Must be False if :attr:`carries_values`.
            dry_run: Write nothing. Values that the store rejects only during a write are not detected then.

        Returns:
            The records that the store still rejects, as a whole or in part, and those for which the source still fails.

        Raises:
            TryAgainError: Source or store is unavailable; some of the values may be written.
        """
        read, rejected = self._parsed(topic, records)
        if ignores_versions:
            read = [ParsedRecord(one.record, [replace(change, version=BEFORE_RESET) for change in one.changes]) for one in read]
        current, failed = await self._current(read)
        kept: list[RejectedEvent] = []

        async def keep(unstorable: list[RejectedEvent]) -> None:
            kept[:] = unstorable

        if dry_run:
            unstorable: dict[tuple[Cell, int], str] = {}
            self._storable(current, unstorable)
            kept = as_not_storable(read, unstorable, failed)
        else:
            here = replays_of(self._dead_letters.topic)
            stands = (await self.store.checkpoints()).get(here)
            if stands is None:
                stands = 0
                await self.store.set_checkpoint(here, stands, self._clock.now_ms())
            await self._apply(CheckpointStep(here, stands, stands + 1), read, current, failed, keep)
        return [*rejected, *kept]

    async def resets(self) -> dict[str, int]:
        """Return, by output topic, the time at which its fold was last reset, in ms of the wall clock; 0 if it was never reset."""
        checkpoints = await self.store.checkpoints()
        return {topic: checkpoints.get(reset_of(expected.fold), 0) for topic, expected in self._expected.items()}

    @property
    def carries_values(self) -> bool:
        """Whether the values come from the records, instead of from a query or a function."""
        return self._source.carries_values

    def knows(self, topic: str) -> bool:
        return topic in self._expected

    async def close(self) -> None:
        await self._source.close()
        await self.store.close()
        await self._dead_letters.close()

    @property
    def _most(self) -> int | None:
        """Maximum number of cells of a batch, for source and store to finish within their timeouts; None means no limit."""
        return min((most for most in (self._source.size.most, self._writer.size.most) if most is not None), default=None)

    def _within_size(self, topic: str, records: Sequence[OutputRecord]) -> Sequence[OutputRecord]:
        """Return the first records that together have at most the maximum number of cells; at least one, even if it has more."""
        if self._most is None:
            return records
        cells = 0
        for number, record in enumerate(records):
            parsed = parse(record.key, record.value, self._expected[topic])
            cells += 0 if isinstance(parsed, RejectedRecord) else len(parsed)
            if number and cells > self._most:
                return records[:number]
        return records

    async def _current(self, read: Sequence[ParsedRecord]) -> tuple[list[CellChange], dict[tuple[Cell, int], str]]:
        """Return the changes to be written, with their values.

        If the records carry the values, these are all announced changes. Otherwise, the source is queried for the newest change of
        each cell, and deletions of the other stored names of deleted groups are added.

        Returns:
            The changes; and the cell and version of each change for which the source fails, with the error.
        """
        announced = [change for one in read for change in one.changes]
        if self._source.carries_values:
            return announced, {}
        asked = newest(announced)
        current, failed = await self._source.of(asked)
        self._observe_absent(current)
        gone = list(dict.fromkeys(change.cell[:2] for change in current if change.is_group_gone))
        if gone:
            current = with_the_rest(current, [cell for cell in await self.store.names(gone) if cell not in failed])
        return current, {change.key: failed[change.cell] for change in asked if change.cell in failed}

    def _observe_absent(self, current: Sequence[CellChange]) -> None:
        """Count the values that the source does not have; log once if it has none of a fold at all."""
        absent = sum(change.value is None and not change.is_group_gone for change in current)
        self._metrics.read_store_absent_values.labels(self.store_name).inc(absent)
        if why := self._absent.observe(current):
            logger.warning(
                "the read store gets only NULL: %s; if they were not deleted, the source must return the groups and names "
                "as records have them, see `streams-app check` store=%s fold=%s",
                why, self.store_name, current[0].cell.fold,
            )  # fmt: skip

    def _storable(self, current: Sequence[CellChange], unstorable: dict[tuple[Cell, int], str]) -> list[CellChange]:
        """Return, for each cell, the newest change that the store can hold; add newer changes that it rejects to ``unstorable``."""
        while True:
            newest_left = newest(change for change in current if change.key not in unstorable)
            found = {change.key: why for change in newest_left if (why := self.store.rejection(change))}
            if not found:
                return newest_left
            unstorable |= found

    async def _apply(
        self,
        step: CheckpointStep,
        read: Sequence[ParsedRecord],
        current: Sequence[CellChange],
        failed: Mapping[tuple[Cell, int], str],
        keep: Callable[[list[RejectedEvent]], Awaitable[None]],
    ) -> tuple[Counts, dict[tuple[Cell, int], str]]:
        """Write the changes that the store can hold, and the checkpoint.

        Before each attempt, ``keep`` is awaited with the rejected events for all other changes.

        Args:
            failed: Cell and version of each change for which the source fails, with the error.

        Returns:
            Numbers of cells; and the cell and version of each change that the store can never hold, with the reason.
        """
        unstorable: dict[tuple[Cell, int], str] = {}
        while True:
            taken = self._storable(current, unstorable)
            await keep(as_not_storable(read, unstorable, failed))
            try:
                counts = await self._writer.apply(taken, step)
            except NotStorableError as error:
                found = {change.key: error.cells[change.cell] for change in taken if change.cell in error.cells}
                if not found:
                    raise
                unstorable |= found
            else:
                for result in STORE_RESULTS:
                    self._metrics.read_store_writes.labels(self.store_name, result).inc(getattr(counts, result))
                return counts, unstorable

    def _parsed(self, topic: str, records: Sequence[OutputRecord]) -> tuple[list[ParsedRecord], list[RejectedEvent]]:
        read: list[ParsedRecord] = []
        rejected: list[RejectedEvent] = []
        for record in records:
            parsed = parse(record.key, record.value, self._expected[topic])
            if isinstance(parsed, RejectedRecord):
                rejected.append(as_not_a_record(record, parsed.why))
            else:
                read.append(ParsedRecord(record, parsed))
        return read, rejected

    async def _keep(self, tp: TP, unstorable: Sequence[RejectedEvent]) -> None:
        if not unstorable:
            return
        await self._dead_letters.write_once(tp, unstorable)
        first = unstorable[0]
        logger.warning(
            "records became dead letters store=%s count=%d source=%s first_offset=%d first_reason=%s first_why=%s",
            self.store_name, len(unstorable), tp, first.record.offset, first.reason, first.detail,
        )  # fmt: skip


def parts_of(
    records: Sequence[OutputRecord], max_records: int = MAX_RECORDS, max_bytes: int = MAX_BYTES
) -> Iterator[list[OutputRecord]]:
    """Split fetched records into batches, in order; none is empty, and a record beyond ``max_bytes`` is a batch of its own."""
    part: list[OutputRecord] = []
    used_bytes = 0
    for record in records:
        size = len(record.value or b"")
        if part and (len(part) >= max_records or used_bytes + size > max_bytes):
            yield part
            part, used_bytes = [], 0
        part.append(record)
        used_bytes += size
    if part:
        yield part
