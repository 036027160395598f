"""Simulated subscribers with special settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.delivery.processor import Processors
from streams_app.subscribers.declaration.received import Retry
from tests.simulation.calls import FATES
from tests.simulation.subscribing import Subscribing
from tests.simulation.write_ahead import AtMostOnce, Deduplicated

if TYPE_CHECKING:
    from tests.simulation.worker import Worker

BEHIND_MS = 7_200_000
"""Longer than the time for which a simulated subscriber remembers ids."""

LARGE_METADATA_BYTES = 1_000
"""Enough for the commit metadata of any schedule."""


class ByKey(AtMostOnce):
    """``idempotent="no"``; events of a key are called one after another."""

    ordered = "key"


class ByKeyWithLargeMetadata(ByKey):
    """As :class:`ByKey`, with enough commit metadata for all events that may begin: one event waits while others run."""

    @contextmanager
    def limits(self, seed: int) -> Iterator[None]:
        """Apply the limits of the base class, except for the metadata."""
        with (
            super().limits(seed),
            patch("streams_app.subscribers.guarantees.at_most_once.MAX_METADATA_BYTES", LARGE_METADATA_BYTES),
        ):
            yield


class InOrder(Subscribing):
    """``idempotent="yes"``; events of a key are called one after another."""

    ordered = "key"


class WithoutKilling(Subscribing):
    """``idempotent="yes"``; no event kills its process, so that without faults the number of calls of each event is known."""

    @contextmanager
    def limits(self, seed: int) -> Iterator[None]:
        """Apply the limits of the base class; events that would kill their process succeed."""
        with super().limits(seed), patch.dict(FATES, {number: "is done" for number, fate in FATES.items() if fate == "kills"}):
            yield


class RetriedAtOnce(Deduplicated):
    """``idempotent="unknown"``; an attempt that did nothing is retried at once."""

    def _failure(self, offset: int) -> Exception:
        self.ledger.has_done_nothing(offset)
        return Retry(after="0s")


class OldEvents(AtMostOnce):
    """``idempotent="no"``; old events are older than the time for which ids are remembered."""

    @contextmanager
    def limits(self, seed: int) -> Iterator[None]:
        """Apply the limits of the base class, and the age of old events."""
        with super().limits(seed), patch("tests.simulation.faults.HISTORY_AGE_MS", BEHIND_MS):
            yield


class OffsetSetByHand(Deduplicated):
    """``idempotent="unknown"``; a tool of Kafka has committed its initial offset, and commits are rare."""

    @contextmanager
    def limits(self, seed: int) -> Iterator[None]:
        """Apply the limits of the base class, with rare commits."""
        with super().limits(seed), patch("tests.simulation.worker.COMMIT_SECONDS", 5.0):
            yield

    def processors(self, worker: Worker) -> Processors:
        """Return the processors of a process; the tool commits before the first worker."""
        if self._world.committed is None:
            self._world.committed = PartitionCommit(0, "")
        return super().processors(worker)
