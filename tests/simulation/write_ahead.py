"""Simulated subscribers that may not be called twice for one event; some events are published twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from streams_app.delivery.batch import TP
from streams_app.delivery.offset_metadata import OffsetAndMetadata, commit_of
from streams_app.delivery.processor import Processors
from streams_app.subscribers.declaration.received import Received, Retry
from streams_app.subscribers.execution.decoding import DecodedRecord
from streams_app.subscribers.state.offset_metadata import OffsetMetadata, decoded, encoded
from streams_app.subscribers.state.offset_tracker import NOTHING
from tests.simulation.calls import NAME, CallLedger, fate_of, metadata_in
from tests.simulation.kafka import Log, Record
from tests.simulation.redis import named
from tests.simulation.subscribing import Happened, Subscribing

if TYPE_CHECKING:
    from tests.simulation.worker import Worker
    from tests.simulation.world import World


def first_of(offset: int) -> int:
    """Return the offset of the event that an event repeats, if there is one."""
    return offset - 4 if offset % 9 == 8 else offset


def id_of(offset: int) -> str:
    """Return the id of an event."""
    return f"e{first_of(offset)}"


class RepeatingLog(Log):
    """A log in which both copies of an event have the same key."""

    def append(self, entry: Record | None) -> None:
        """Append an offset."""
        first = self.entries[first_of(self.end)] if entry is not None and first_of(self.end) < self.end else None
        super().append(entry if entry is None or first is None else replace(entry, key=first.key))


class DeduplicatedLedger(CallLedger):
    """Checks a subscriber that may not be called twice from outside.

    Attributes:
        attempts_with_effect: Offset → attempts whose function has not reported that it did nothing.
        by_id: The same by the id of the event.
        duplicates: Offset of a duplicate → offset of the event that it repeats.
    """

    attempts = 1
    killer = "interrupted"
    hanging = frozenset({"timed-out", "interrupted"})  # a rebalance waits for it at most until its timeout

    def __init__(self, log: Log, world: World) -> None:
        super().__init__(log, world)
        self.attempts_with_effect: dict[int, int] = {}
        self.by_id: dict[str, int] = {}
        self.duplicates: dict[int, int] = {}

    def may_run_twice(self) -> bool:
        """Whether the faults so far permit an event to run twice."""
        return self._world.server.losses > 0

    def is_finished(self, offset: int) -> bool:
        """Whether an offset requires no more work; a duplicate requires none."""
        return super().is_finished(offset) or offset in self.duplicates

    def is_excused(self, reason: str) -> bool:
        """Whether any event may have become a dead letter for this reason; an interrupted event may."""
        is_cut_off = "killed" in self._world.counts or self._world.mix.has_any
        return (reason in ("interrupted", "finished-late") and is_cut_off) or super().is_excused(reason)

    def begins(self, offset: int) -> None:
        """Handle a call of the function."""
        self.check_begin_recorded(offset)
        event_id = id_of(offset)
        if (self.attempts_with_effect.get(offset) or self.by_id.get(event_id)) and not self.may_run_twice():
            self._world.report_fault("twice", f"{offset} of id {event_id} is called again, after {self.calls.get(offset)}")
        self.attempts_with_effect[offset] = self.attempts_with_effect.get(offset, 0) + 1
        self.by_id[event_id] = self.by_id.get(event_id, 0) + 1

    def check_begin_recorded(self, offset: int) -> None:
        """Check that the begin is recorded."""

    def has_done_nothing(self, offset: int) -> None:
        """Handle the report of the function that it did nothing."""
        self.attempts_with_effect[offset] -= 1
        self.by_id[id_of(offset)] -= 1


class Deduplicated(Subscribing):
    """See :class:`tests.simulation.subject.Subject`; ``idempotent="unknown"``."""

    idempotent = "unknown"
    ledger: DeduplicatedLedger

    def __init__(self, world: World) -> None:
        """Create one subscriber, and its log."""
        world.log = RepeatingLog(world.log.tp)
        super().__init__(world)

    def _ledger(self) -> CallLedger:
        return DeduplicatedLedger(self._world.log, self._world)

    @staticmethod
    def _decode(tp: TP, record: Any, attempt: int) -> DecodedRecord:
        event_id = id_of(record.offset)
        event: Received[Happened] = Received(
            data=Happened(record.offset), id=event_id, raw_key=record.key, offset=record.offset, attempt=attempt
        )
        return DecodedRecord(event_id, event, event_id)

    async def _ship(self, worker: Worker, event: Received[Happened]) -> None:
        await worker.running()
        self.ledger.begins(event.offset)
        await super()._ship(worker, event)

    def _failure(self, offset: int) -> Exception:
        self.ledger.has_done_nothing(offset)
        return Retry()

    def calls_of(self, offset: int) -> list[int]:
        """Return the expected calls: an event is retried only if its function did nothing; a duplicate is never called."""
        if offset in self.ledger.duplicates:
            return []
        return [1, 2, 3] if fate_of(offset) == "fails twice" else [1]

    def ran(self, name: str, keys: Sequence[str], args: Sequence[Any], reply: Any) -> bool:
        """Do nothing: Redis decides which events are duplicates, which is checked at the end."""
        if name == "begin" and reply[0] == b"ok":
            offsets = named(args)["events"][::3]
            for place, first in zip(reply[2::2], reply[3::2], strict=True):
                self.ledger.duplicates[int(offsets[int(place)])] = int(first)
        return super().ran(name, keys, args, reply)

    def check_end(self) -> None:
        """Check that each duplicate repeats an event that is done or a dead letter."""
        for offset, first in self.ledger.duplicates.items():
            if id_of(offset) != id_of(first) or offset == first:
                self._world.report_fault("duplicate", f"{offset} counted as a duplicate of {first}")
            if first in self.ledger.duplicates or not self.ledger.is_finished(first):
                self._world.report_fault("duplicate", f"{first}, which {offset} repeats, was never called")
        super().check_end()


class AtMostOnceLedger(DeduplicatedLedger):
    """Checks from outside a subscriber that is called at most once for each record, regardless of faults of Redis."""

    behind = 2  # the contents of a commit with begins are determined while the previous commit is in progress

    def may_run_twice(self) -> bool:
        """Return False: an event never runs twice."""
        return False

    def is_excused(self, reason: str) -> bool:
        """Whether an event may be interrupted: not if it ends within its timeout, even if its partition is claimed again."""
        is_gentle = self._world.mix.is_gentle and "killed" not in self._world.counts
        return super().is_excused(reason) and not (is_gentle and reason == "interrupted")

    def check_begin_recorded(self, offset: int) -> None:
        """Check that the commit names the begin, unless another worker has made a dead letter of the event since."""
        committed = self._world.committed
        assert committed is not None
        metadata = decoded(metadata_in(committed), committed.offset, self._log.end)
        assert metadata is not None
        is_finished = offset < committed.offset or any(run.begin <= offset < run.end for run in metadata.above.finished)
        if offset not in metadata.above.begun and not is_finished:
            self._world.report_fault("unrecorded", f"{offset} begins, and no commit names it")


class AtMostOnce(Deduplicated):
    """See :class:`tests.simulation.subject.Subject`; ``idempotent="no"``."""

    idempotent = "no"
    is_exact = True

    def _ledger(self) -> CallLedger:
        return AtMostOnceLedger(self._world.log, self._world)

    @contextmanager
    def limits(self, seed: int) -> Iterator[None]:
        """Limit the commit metadata to a few intervals."""
        with super().limits(seed), patch("streams_app.subscribers.guarantees.at_most_once.MAX_METADATA_BYTES", 35 + seed % 20):
            yield

    def processors(self, worker: Worker) -> Processors:
        """Return the processors of a process; the initial offsets are set before the first worker."""
        if self._world.committed is None:
            self._world.committed = commit_of({NAME: OffsetAndMetadata(0, encoded(0, OffsetMetadata("the one", NOTHING)))})
        return super().processors(worker)
