"""Subscribers in a simulation that may not be called twice for one event, some of which are published twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from streams_app.delivery.batch import TP
from streams_app.delivery.offset_metadata import commit_of
from streams_app.delivery.processor import OffsetAndMetadata, Processors
from streams_app.subscribers.declaration.received import Received, Retry
from streams_app.subscribers.execution.decoding import DecodedRecord
from streams_app.subscribers.state.offset_metadata import Note, decoded, encoded
from streams_app.subscribers.state.offset_tracker import NOTHING
from tests.chaos.simulation_calls import NAME, CallLedger, fate_of, note_in
from tests.chaos.simulation_kafka import Log, Record
from tests.chaos.simulation_redis import named
from tests.chaos.simulation_subscribing import Happened, Subscribing

if TYPE_CHECKING:
    from tests.chaos.simulation import World
    from tests.chaos.simulation_worker import Worker


def first_of(offset: int) -> int:
    """Offset of the event that one repeats, if it is there: some were published twice."""
    return offset - 4 if offset % 9 == 8 else offset


def id_of(offset: int) -> str:
    """Id of an event."""
    return f"e{first_of(offset)}"


class RepeatingLog(Log):
    """What was published twice has one key."""

    def append(self, entry: Record | None) -> None:
        """One more offset."""
        first = self.entries[first_of(self.end)] if entry is not None and first_of(self.end) < self.end else None
        super().append(entry if entry is None or first is None else replace(entry, key=first.key))


class OnceLedger(CallLedger):
    """What the outside world sees of a subscriber that may not be called twice.

    Attributes:
        serious: Offset → attempts of which nobody has said that they did nothing.
        by_id: The same by the id of the event.
        duplicates: Offset of a duplicate → offset of the event that it repeats.
    """

    attempts = 1
    killer = "interrupted"
    hanging = frozenset({"timed-out", "interrupted"})  # a rebalance waits for it no longer than until its time is over

    def __init__(self, log: Log, world: World) -> None:
        super().__init__(log, world)
        self.serious: dict[int, int] = {}
        self.by_id: dict[str, int] = {}
        self.duplicates: dict[int, int] = {}

    def may_run_twice(self) -> bool:
        """Whether what has happened lets an event run twice."""
        return self._world.server.losses > 0

    def is_finished(self, offset: int) -> bool:
        """A duplicate is finished by itself."""
        return super().is_finished(offset) or offset in self.duplicates

    def is_excused(self, reason: str) -> bool:
        """What was cut off is a letter, whatever it would have done."""
        is_cut_off = "killed" in self._world.counts or self._world.mix.has_any
        return (reason in ("interrupted", "finished-late") and is_cut_off) or super().is_excused(reason)

    def begins(self, offset: int) -> None:
        """The function is called."""
        self.check_noted(offset)
        event_id = id_of(offset)
        if (self.serious.get(offset) or self.by_id.get(event_id)) and not self.may_run_twice():
            self._world.report_fault("twice", f"{offset} of id {event_id} is called again, after {self.calls.get(offset)}")
        self.serious[offset] = self.serious.get(offset, 0) + 1
        self.by_id[event_id] = self.by_id.get(event_id, 0) + 1

    def check_noted(self, offset: int) -> None:
        """Whether its begin is where it has to be."""

    def has_done_nothing(self, offset: int) -> None:
        """The function says so."""
        self.serious[offset] -= 1
        self.by_id[id_of(offset)] -= 1


class Once(Subscribing):
    """See :class:`tests.chaos.simulation_subject.Subject`; ``idempotent="unknown"``."""

    idempotent = "unknown"
    ledger: OnceLedger

    def __init__(self, world: World) -> None:
        """One subscriber, and its log."""
        world.log = RepeatingLog(world.log.tp)
        super().__init__(world)

    def _ledger(self) -> CallLedger:
        return OnceLedger(self._world.log, self._world)

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

    def _trouble(self, offset: int) -> Exception:
        self.ledger.has_done_nothing(offset)
        return Retry()

    def calls_of(self, offset: int) -> list[int]:
        """Only what says that it has done nothing is called again, and no duplicate ever."""
        if offset in self.ledger.duplicates:
            return []
        return [1, 2, 3] if fate_of(offset) == "fails twice" else [1]

    def ran(self, name: str, keys: Sequence[str], args: Sequence[Any], reply: Any) -> bool:
        """Which events are duplicates is for Redis to say, and is judged at the end."""
        if name == "begin" and reply[0] == b"ok":
            offsets = named(args)["events"][::3]
            for place, first in zip(reply[2::2], reply[3::2], strict=True):
                self.ledger.duplicates[int(offsets[int(place)])] = int(first)
        return super().ran(name, keys, args, reply)

    def check_end(self) -> None:
        """A duplicate repeats an event that is done or a letter."""
        for offset, first in self.ledger.duplicates.items():
            if id_of(offset) != id_of(first) or offset == first:
                self._world.report_fault("duplicate", f"{offset} was taken for a duplicate of {first}")
            if first in self.ledger.duplicates or not self.ledger.is_finished(first):
                self._world.report_fault("duplicate", f"{first}, which {offset} repeats, was never called")
        super().check_end()


class AtMostOnceLedger(OnceLedger):
    """What the outside world sees of a subscriber that is called at most once for each record, whatever happens to Redis."""

    behind = 2  # what a begin has to say is written down while the commit before it is on its way

    def may_run_twice(self) -> bool:
        """Never."""
        return False

    def is_excused(self, reason: str) -> bool:
        """What ends within its time is cut off by nobody, however often its partition is claimed again."""
        is_gentle = self._world.mix.is_gentle and "killed" not in self._world.counts
        return super().is_excused(reason) and not (is_gentle and reason == "interrupted")

    def check_noted(self, offset: int) -> None:
        """What begins is in the commit that the broker has; or was, and somebody else has made a letter of it."""
        held = self._world.committed
        assert held is not None
        noted = decoded(note_in(held), held.offset, self._log.end)
        assert noted is not None
        is_finished = offset < held.offset or any(run.begin <= offset < run.end for run in noted.above.finished)
        if offset not in noted.above.begun and not is_finished:
            self._world.report_fault("unnoted", f"{offset} begins, and the commit does not say so")


class AtMostOnce(Once):
    """See :class:`tests.chaos.simulation_subject.Subject`; ``idempotent="no"``."""

    idempotent = "no"
    is_exact = True

    def _ledger(self) -> CallLedger:
        return AtMostOnceLedger(self._world.log, self._world)

    @contextmanager
    def limits(self, seed: int) -> Iterator[None]:
        """Notes have room for a few runs."""
        with super().limits(seed), patch("streams_app.subscribers.guarantees.at_most_once.MOST_NOTE_BYTES", 35 + seed % 20):
            yield

    def processors(self, worker: Worker) -> Processors:
        """The command has placed the subscriber before its first worker."""
        if self._world.committed is None:
            self._world.committed = commit_of({NAME: OffsetAndMetadata(0, encoded(0, Note("the one", NOTHING)))})
        return super().processors(worker)
