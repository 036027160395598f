"""One pass of the read store: a batch of folded records in, current values out, one transaction.

Touches the source and the store, never Kafka: the agent brings the records.
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
from streams_app.read_store.core.merge import BEFORE_RESET, Cell, CellChange, newest, with_the_rest
from streams_app.read_store.core.record import Expected, Rejected, parse
from streams_app.read_store.core.store import Counts, NotStorableError, ProgressStep, former_end_of, replays_of, reset_of
from streams_app.read_store.registry import open_store
from streams_app.read_store.sync.batch_writer import BatchWriter
from streams_app.read_store.sync.current_values import CurrentValues
from streams_app.read_store.sync.dead_letters import OutputRecord, ParsedRecord, StoreDeadLetters, as_not_a_record, as_not_storable
from streams_app.settings import ReadStoreSettings, Settings

logger = logging.getLogger(__name__)

MAX_RECORDS: Final = 500
MAX_BYTES: Final = 1_000_000
"""Of the values of a batch: bounds the query and the time the store is locked; a single record may be larger."""


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What one pass did.

    Attributes:
        records: How many were read.
        rejected: Records that are not folded records of the fold of their topic; they are kept as dead letters.
        cells: Distinct (fold, group, name) among them.
        written: Cells with a new value.
        stale: Cells for which the store knew a newer version.
        unchanged: Cells that held the value already.
        next_offset: What the store goes on with from now on.
        unstorable: Changes with something that the store can never hold, or for which the source fails; their records are kept as
            dead letters.
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
        self._source = CurrentValues(store, clock)
        self._store = open_store(store)
        self._writer = BatchWriter(self._store, store, clock)
        self._dead_letters = StoreDeadLetters(settings, store, metrics, clock)
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

    async def begin(self, tp: TP, offset: int, other_from: int | None = None) -> None:
        """Sets where to go on with a partition.

        Args:
            tp: Partition of an output topic.
            offset: Where to go on, also below what the store has taken.
            other_from: From there on the log is another one, and nothing in it is of before a reset; None: it is the same log.

        Raises:
            TryAgainError: The store is away.
        """
        former_end = (await self._store.progress()).get(former_end_of(tp), 0)
        if other_from is not None and other_from < former_end:
            await self._store.begin(former_end_of(tp), other_from, self._clock.now_ms())
        await self._store.begin(tp, offset, self._clock.now_ms())
        self._dead_letters.forget_below(tp)

    def overtaken(self, records: int) -> None:
        """Counts records that retention has removed before the store had them."""
        self._metrics.read_store_known_loss_records.labels(self.store_name).inc(records)

    async def sync_once(self, step: ProgressStep, records: Sequence[OutputRecord]) -> SyncResult:
        """One batch, or as much of it as source and store do in their time; can be repeated.

        The source is read after the records, so its values are at least as new as the versions they are written under.

        Args:
            step: Which partition of an output topic, where the store stands, and where it stands then.
            records: Records of the partition in the order of their offsets; without any only the progress is noted.

        Returns:
            What was done; records from its ``next_offset`` on are left.

        Raises:
            ProgressError: The store stands elsewhere; nothing was written.
            TooSlowError: Source or store exceeded the time-out; called once more, less is done at once.
            TryAgainError: Source, store or broker is away; nothing was written but dead letters.
        """
        taken = self._within_size(step.tp.topic, records)
        if len(taken) < len(records):
            step, records = step._replace(to=records[len(taken)].offset), taken
        if self._most is not None and step.after is None and records:
            # A record may take several transactions, which need a progress that they leave as it is.
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
        self, topic: str, records: Sequence[OutputRecord], *, is_former: bool = False, dry_run: bool = False
    ) -> list[RejectedEvent]:
        """Writes what records announce that became dead letters, beside the progress of their partitions.

        The version guard lets nothing through that the store knows better, so that records may be put back again and again. How
        often that was done is a progress of its own, so that a rebuild under way notices it.

        Args:
            topic: Output topic that the records come from.
            records: As they were received.
            is_former: Their fold was reset since: their versions say nothing any more, and the values of the source are written
                where nothing is that was folded since. Not where values are carried.
            dry_run: Nothing is written; a store that finds out only while writing what it cannot hold does not say so.

        Returns:
            The records that the store still does not take, or not whole, and those for which the source still fails.

        Raises:
            TryAgainError: Source or store is away; nothing was written.
        """
        read, rejected = self._parsed(topic, records)
        if is_former:
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
            stands = (await self._store.progress()).get(here)
            if stands is None:
                stands = 0
                await self._store.begin(here, stands, self._clock.now_ms())
            await self._apply(ProgressStep(here, stands, stands + 1), read, current, failed, keep)
        return [*rejected, *kept]

    async def resets(self) -> dict[str, int]:
        """Output topic → when its fold was reset last, wall clock in milliseconds; 0: never.

        Raises:
            TryAgainError: The store is away.
        """
        progress = await self._store.progress()
        return {topic: progress.get(reset_of(expected.fold), 0) for topic, expected in self._expected.items()}

    @property
    def carries_values(self) -> bool:
        """Whether the values are those of the records, and as old."""
        return self._source.carries_values

    def knows(self, topic: str) -> bool:
        """Whether an output topic is one of those that are read."""
        return topic in self._expected

    async def close(self) -> None:
        """Interrupts what is under way and closes source and store."""
        await self._source.close()
        await self._store.close()
        await self._dead_letters.close()

    @property
    def _most(self) -> int | None:
        """Cells that source and store can do in their time; None: as many as there are."""
        return min((most for most in (self._source.size.most, self._writer.size.most) if most is not None), default=None)

    def _within_size(self, topic: str, records: Sequence[OutputRecord]) -> Sequence[OutputRecord]:
        """The first records that have no more cells than are done at once; one of them at least."""
        if self._most is None:
            return records
        cells = 0
        for number, record in enumerate(records):
            parsed = parse(record.key, record.value, self._expected[topic])
            cells += 0 if isinstance(parsed, Rejected) else len(parsed)
            if number and cells > self._most:
                return records[:number]
        return records

    async def _current(self, read: Sequence[ParsedRecord]) -> tuple[list[CellChange], dict[tuple[Cell, int], str]]:
        """What may be written: every value that is carried; or the source's of each cell, under its newest version.

        Of a group that is gone it is also the other names, which the records do not tell.

        Returns:
            The changes; and those for which the source fails, with the reason.
        """
        announced = [change for one in read for change in one.changes]
        if self._source.carries_values:
            return announced, {}
        asked = newest(announced)
        current, failed = await self._source.of(asked)
        gone = list(dict.fromkeys(change.cell[:2] for change in current if change.is_group_gone))
        if gone:
            current = with_the_rest(current, [cell for cell in await self._store.names(gone) if cell not in failed])
        return current, {change.key: failed[change.cell] for change in asked if change.cell in failed}

    def _storable(self, current: Sequence[CellChange], unstorable: dict[tuple[Cell, int], str]) -> list[CellChange]:
        """The newest change of each cell that the store can hold, as far as it can tell; those that it cannot are noted."""
        while True:
            newest_left = newest(change for change in current if change.key not in unstorable)
            found = {change.key: why for change in newest_left if (why := self._store.rejection(change))}
            if not found:
                return newest_left
            unstorable |= found

    async def _apply(
        self,
        step: ProgressStep,
        read: Sequence[ParsedRecord],
        current: Sequence[CellChange],
        failed: Mapping[tuple[Cell, int], str],
        keep: Callable[[list[RejectedEvent]], Awaitable[None]],
    ) -> tuple[Counts, dict[tuple[Cell, int], str]]:
        """Writes what the store can hold; ``keep`` is called before that with the records of what it cannot hold."""
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
            if isinstance(parsed, Rejected):
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
            "records kept as dead letters store=%s count=%d source=%s first_offset=%d first_reason=%s first_why=%s",
            self.store_name, len(unstorable), tp, first.record.offset, first.reason, first.detail,
        )  # fmt: skip


def steps(
    records: Sequence[OutputRecord], max_records: int = MAX_RECORDS, max_bytes: int = MAX_BYTES
) -> Iterator[list[OutputRecord]]:
    """Cuts what was fetched into batches, in order; none is empty.

    Args:
        records: What was fetched.
        max_records: Number of records in one batch, at most.
        max_bytes: Values of one batch; a larger record is a batch of its own.
    """
    step: list[OutputRecord] = []
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
