"""The dead letters of a read store: records that the store can never hold, or for which its source fails.

The broker acknowledges a dead letter before the checkpoint of the store passes its record. If the worker crashes
or another one claims the partition in between, the dead letter may be written twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.dead_letters import DeadLetterSender, RejectingComponent
from streams_app.delivery.rejected_event import RejectedEvent
from streams_app.errors import TryAgainError
from streams_app.health.metrics import Metrics
from streams_app.kafka.producer import AckedProducer
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.reasons import Reason
from streams_app.settings import ReadStoreSettings, Settings

SEND_SECONDS: Final = 5.0
ERROR_BYTES: Final = 500


class OutputRecord(Protocol):
    """The attributes of a consumed record that syncing uses.

    ``timestamp`` is in milliseconds; it is negative or None if the record has none.
    """

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class ParsedRecord:
    """A folded record, and the changes of cells that it announces."""

    record: OutputRecord
    changes: Sequence[CellChange]


def as_not_a_record(record: OutputRecord, why: str) -> RejectedEvent:
    """Return the rejected event for a record that is not a folded record of the fold of its topic; ``why`` is the reason."""
    return RejectedEvent(record, "not-a-record", why, headers=_error(why))


def as_not_storable(
    read: Iterable[ParsedRecord], unstorable: Mapping[tuple[Cell, int], str], failed: Mapping[tuple[Cell, int], str]
) -> list[RejectedEvent]:
    """Return a rejected event for each record that announced unstorable or failed changes.

    If several records announced the same change, only the first of them is rejected because of it.

    Args:
        unstorable: Cell and version of each change that the store can never hold, with the reason.
        failed: Cell and version of each change for which the source fails, with the error of the source.
    """
    found = []
    left = {**unstorable, **failed}
    for one in read:
        change_keys = [change.key for change in one.changes if change.key in left]
        whys = {change_key[0].name: left.pop(change_key) for change_key in change_keys}
        if whys:
            why = next(iter(whys.values()))
            reason: Reason = "source-failed" if change_keys[0] in failed else "not-storable"
            found.append(RejectedEvent(one.record, reason, f"{', '.join(whys)}: {why}", headers=_error(why)))
    return found


class StoreDeadLetterWriter:
    """Writes the dead letters of one store, with its own producer."""

    def __init__(self, settings: Settings, store: ReadStoreSettings, metrics: Metrics, clock: Clock) -> None:
        self.topic = store.dead_letters
        self._component = RejectingComponent("store", store.name, settings.app_id, store.dead_letters)
        self._producer = AckedProducer(
            settings.kafka, client_id=f"{settings.app_id}-{store.group}-letters", send_seconds=SEND_SECONDS
        )
        self._metrics = metrics
        self._clock = TrustedClock(clock)
        self._acknowledged: dict[TP, set[int]] = {}

    async def write_once(self, source: TP, unstorable: Sequence[RejectedEvent]) -> None:
        """Write a dead letter for each rejected event; return once the broker has acknowledged all of them.

        If the call is repeated before :meth:`forget_below`, it sends only the dead letters that were not acknowledged.

        Raises:
            TryAgainError: The broker has not acknowledged all dead letters.
        """
        kept = self._acknowledged.setdefault(source, set())
        unsent = [one for one in unstorable if one.record.offset not in kept]
        writer = self._writer_of(source)
        failures = await asyncio.gather(*(writer.send_once([one]) for one in unsent))
        kept.update(one.record.offset for one, failed in zip(unsent, failures, strict=True) if failed is None)
        if failed := next(filter(None, failures), None):
            raise TryAgainError(f"{self._component.topic} does not acknowledge dead letters: {failed!r}")

    def forget_below(self, source: TP, checkpoint: int | None = None) -> None:
        """Forget which dead letters were acknowledged, so that :meth:`write_once` would send them again.

        Args:
            checkpoint: Checkpoint of the store. Only dead letters of records below it are forgotten. None means that it was
                reset: all are forgotten.
        """
        left = {offset for offset in self._acknowledged.pop(source, ()) if checkpoint is not None and offset >= checkpoint}
        if left:
            self._acknowledged[source] = left

    async def close(self) -> None:
        await self._producer.stop()

    def _writer_of(self, source: TP) -> DeadLetterSender:
        def count(name: str, reason: str) -> None:
            self._metrics.read_store_dead_letters.labels(name, reason).inc()

        return DeadLetterSender(self._component, source, self._producer, self._clock, count)


def _error(why: str) -> tuple[tuple[str, bytes], ...]:
    return (("error", why.encode(errors="backslashreplace")[:ERROR_BYTES]),)
