"""Test kit for folds: send events, advance a virtual clock, check the records. It needs neither Kafka nor Redis.

The kit reads events, closes groups and renders records with the code of the worker. Open groups are in memory, in
:class:`streams_app.folding.core.model.MemoryShard`; integration tests compare this class with the worker's scripts on a real Redis.

::

    kit = FoldTester(Fold(name="f", source="s", group_key="account_id", changed="metrics", quiet_period="15m"))
    kit.send({"account_id": "a", "metrics": ["likes"]})
    kit.advance("10m")
    kit.send({"account_id": "a", "metrics": ["shares"]})
    assert kit.advance("14m") == []
    (record,) = kit.advance("2m")
    assert record.value["metrics"] == ["likes", "shares"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from streams_app.codec import canonical_bytes
from streams_app.exact_json import decode, encode
from streams_app.fold import Fold
from streams_app.folding.core.auto_quiet import AutoQuiet, AutoQuietGoal
from streams_app.folding.core.chunks import ChunkCutter
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import DetailedEvent, ScoredEvent, without_values
from streams_app.folding.core.model import MemoryShard
from streams_app.folding.core.record import FoldedRecord, RecordShape, SealedGroup, render
from streams_app.folding.core.shard_clock import RangeTime, ShardClock
from streams_app.folding.reading.reader import decode_all
from streams_app.folding.reading.readers import reader_of
from streams_app.formatting import milliseconds, parse_duration
from streams_app.reasons import Reason
from streams_app.settings import Limits

START_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Record:
    """A folded record that a test kit has emitted.

    Attributes:
        key: Key of the record: the group key as bytes.
        value: Value of the record, decoded from JSON.
        fold_id: Value of the header ``fold-id``.
        emitted_ms: Virtual wall clock when the record was emitted, in ms since 1970.
    """

    key: bytes
    value: dict[str, Any]
    fold_id: str
    emitted_ms: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that a test kit has rejected, as it was sent.

    Attributes:
        key: Key of the event's record; None if it has no key.
        value: Value of the event's record; None for a tombstone.
        reason: Reason of the dead letter, such as ``not-json``.
        detail: Description of the fault.
    """

    key: bytes | None
    value: bytes | None
    reason: Reason
    detail: str


@dataclass(slots=True)
class _TestRecord:
    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


class FoldTester:
    """Folds the events of one partition by one fold, under a virtual clock.

    Attributes:
        now_ms: Current time of the virtual wall clock, in ms since 1970.
        records: All records that were emitted so far, in order.
        dead_letters: All events that were rejected so far, in the order in which they were sent.
        duplicates: Number of events that were ignored so far, because their open group had their id (``dedupe_by``).
    """

    def __init__(
        self,
        fold: Fold,
        *,
        start_ms: int = START_MS,
        tick: str | timedelta = "1s",
        limits: Limits | None = None,
        partitions: int = 1,
    ) -> None:
        """Create a kit whose partition is empty.

        Args:
            fold: The declaration under test.
            start_ms: Initial time of the virtual wall clock, in ms since 1970.
            tick: Interval at which due groups are emitted, like the setting ``worker.tick``.
            limits: Replaces the settings ``[limits]``; None: their defaults.
            partitions: Number of partitions of the source. The versions of records are computed from this number.
        """
        self.now_ms = start_ms
        self.records: list[Record] = []
        self.dead_letters: list[DeadLetter] = []
        self.duplicates = 0
        self._fold = fold
        self._limits = limits or Limits()
        self._reader = reader_of(fold, self._limits)
        self._tick_ms = milliseconds(parse_duration(tick))
        self._start_ms = start_ms
        bounds = Bounds.of(fold)
        self._shard = MemoryShard(bounds, partitions)
        self._clock = ShardClock(backlog=fold.backlog, quiet_ms=fold.quiet_period_ms)
        goal = AutoQuietGoal.of(fold)
        self._auto_quiet = None if goal is None else AutoQuiet(goal)
        self._shape = RecordShape.of(fold)
        self._offset = 0
        self._on_record: Callable[[FoldedRecord], None] | None = None

    @property
    def fold(self) -> Fold:
        """The declaration under test."""
        return self._fold

    @property
    def open_groups(self) -> list[bytes]:
        """Keys of the open groups, in the order of their first events."""
        in_order = sorted(self._shard.open.items(), key=lambda item: item[1].first_offset)
        return [canonical_bytes(group) for group, _ in in_order]

    def send(
        self, value: Any, *, key: bytes | None = None, at_ms: int | None = None, headers: Mapping[str, bytes] | None = None
    ) -> list[Record]:
        """Fold one event, as a worker does that has caught up. A rejected event is added to :attr:`dead_letters`.

        Args:
            value: Value of the record: bytes or None are sent unchanged, other objects as JSON.
            key: Record key; None: the record has no key.
            at_ms: Record timestamp, in ms since 1970; None: now.
            headers: Record headers; None: the record has none.

        Returns:
            Records that were emitted at once, because the event closed its group or, with ``leading``, began one.
        """
        record = self._record(value, key, self.now_ms if at_ms is None else at_ms, tuple((headers or {}).items()))
        return self._receive([record], is_behind=False)

    def catch_up(self, events: Iterable[tuple[int, Any]]) -> list[Record]:
        """Fold a backlog of events that were waiting when the worker started, then emit the due groups once.

        Args:
            events: For each event its record timestamp, in ms since 1970, and its value; in the order of the log.

        Returns:
            Records that were emitted, in order.
        """
        emitted = self._receive([self._record(value, None, at_ms) for at_ms, value in events], is_behind=True)
        return emitted + self._emit_due()

    def advance(self, by: str | timedelta) -> list[Record]:
        """Advance the virtual clock by a duration, and emit due groups at each tick.

        Returns:
            Records that were emitted, in order.

        Raises:
            RuntimeError: The fold is connected to a :class:`.SubscriberTester`, whose clock must be advanced instead.
        """
        if self._on_record is not None:
            raise RuntimeError("this fold is connected to a SubscriberTester: advance that one")
        return self.advance_to(self.now_ms + milliseconds(parse_duration(by)))

    def advance_to(self, until_ms: int) -> list[Record]:
        """Advance the virtual clock to ``until_ms``, in ms since 1970; return the records that were emitted, in order."""
        emitted: list[Record] = []
        while (tick_ms := self.next_due_ms()) is not None and tick_ms <= until_ms:
            self.now_ms = tick_ms
            emitted += self._emit_due()
        self.now_ms = until_ms
        return emitted

    def next_due_ms(self) -> int | None:
        """Return the time of the next tick of the worker that may emit a group, in ms since 1970; None if no group is open."""
        due_ms = self._shard.next_due_ms()
        return None if due_ms is None else self._tick_at(max(due_ms, self.now_ms + 1))

    def follow(self, now_ms: int, on_record: Callable[[FoldedRecord], None]) -> None:
        """Connect this kit to another one, which advances the clock of both from now on; see :meth:`.SubscriberTester.connect`.

        Args:
            now_ms: Current time of the other kit, in ms since 1970.
            on_record: Called with each record that is emitted.

        Raises:
            ValueError: Events were sent to this kit before.
        """
        if self._offset:
            raise ValueError("this fold has received events already: connect it first")
        self.now_ms = self._start_ms = now_ms
        self._on_record = on_record

    def flush(self) -> list[Record]:
        """Emit all open groups now, like ``streams-app groups flush --all``; return their records."""
        return self._emit(self._shard.seal(self.now_ms, everything=True))

    def drop(self, key: bytes) -> int:
        """Discard the open groups with this key, like ``streams-app groups drop``; return how many events they contained."""
        members = [member for member in self._shard.open if canonical_bytes(member) == key]
        dropped = [self._shard.drop(member, self._shard.open[member].first_offset) for member in members]
        return sum(group.events for group in dropped if group is not None)

    def _emit_due(self) -> list[Record]:
        clock_ms = self._clock.due_ms(self.now_ms)
        quiet = self._clock.quiet_groups_close(clock_ms, self.now_ms)
        self._clock.stored = self._clock.stored._replace(clock_ms=clock_ms)
        return self._emit(self._shard.seal(clock_ms, quiet=quiet, late_ms=self._clock.stored.late_ms))

    def _tick_at(self, at_ms: int) -> int:
        """Return the time of the first tick at or after ``at_ms``."""
        ticks = -(-(at_ms - self._start_ms) // self._tick_ms)
        return self._start_ms + ticks * self._tick_ms

    def _record(
        self, value: Any, key: bytes | None, at_ms: int, headers: Sequence[tuple[str, bytes]] = ()
    ) -> _TestRecord:  # fmt: skip
        raw = value if value is None or isinstance(value, bytes) else encode(value)
        self._offset += 1
        return _TestRecord(self._offset - 1, at_ms, key, raw, headers)

    def _receive(self, raws: list[_TestRecord], *, is_behind: bool) -> list[Record]:
        reading = self._reader.read(raws, decode_all(raws, self._limits))
        for rejected in reading.rejected:
            self.dead_letters.append(DeadLetter(rejected.record.key, rejected.record.value, rejected.reason, rejected.detail))
        emitted: list[Record] = []
        time = RangeTime(self.now_ms, None if is_behind else self.now_ms)
        for event in map(self._with_quiet_period, reading.events):
            cutter = ChunkCutter([event[:4]], event.offset - 1, event.offset, self._shard.bounds, keeps_values=True)
            chunk = cutter.next(time, self._clock.start_ms(time))
            after = self._clock.after(time, chunk.clock_ms, has_events=True)
            silent_from_ms = self._clock.silent_from_ms(time, after)
            kept = event if self._fold.keeps_values else without_values(event)
            self.duplicates += self._shard.is_duplicate(kept, chunk.clock_ms)
            emitted += self._emit(self._shard.fold(kept, chunk.clock_ms, silent_from_ms))
            self._clock.stored = after
            if self._auto_quiet is not None and event.timestamp_ms >= 0:
                self._auto_quiet.observe(event.group, min(event.timestamp_ms, self.now_ms))
        return emitted

    def _with_quiet_period(self, event: ScoredEvent) -> ScoredEvent:
        if self._auto_quiet is None or not isinstance(event, DetailedEvent):
            return event
        return event._replace(shorter_ms=self._auto_quiet.shorter_ms)

    def _emit(self, sealed: Iterable[SealedGroup]) -> list[Record]:
        folded = [record for entry in sealed for record in render(entry, self._shape, self._fold.source, 0)]
        emitted = [Record(record.key, decode(record.value), record.fold_id.decode(), self.now_ms) for record in folded]
        self.records += emitted
        if self._on_record is not None:
            for record in folded:
                self._on_record(record)
        return emitted
