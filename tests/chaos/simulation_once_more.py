"""Subscribers in a simulation, each with something of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

from streams_app.delivery.group_consumer import Committed
from streams_app.delivery.processor import Processors
from streams_app.subscribers.declaration.received import Retry
from tests.chaos.simulation_calls import FATES
from tests.chaos.simulation_once import AtMostOnce, Once
from tests.chaos.simulation_subscribing import Subscribing

if TYPE_CHECKING:
    from tests.chaos.simulation_worker import Worker

BEHIND_MS = 7_200_000
"""More than a simulated subscriber remembers ids."""

ROOM_BYTES = 1_000
"""What any note of a schedule takes."""


class ByKey(AtMostOnce):
    """``idempotent="no"``; events of a key are called one after another."""

    ordered = "key"


class ByKeyWithRoom(ByKey):
    """As of its kind, and notes have room for all that may begin: one event waits while others run."""

    @contextmanager
    def limits(self, seed: int) -> Iterator[None]:
        """As of its kind, but for the notes."""
        with super().limits(seed), patch("streams_app.subscribers.guarantees.at_most_once.MOST_NOTE_BYTES", ROOM_BYTES):
            yield


class InOrder(Subscribing):
    """``idempotent="yes"``; events of a key are called one after another."""

    ordered = "key"


class Harmless(Subscribing):
    """``idempotent="yes"``; nothing kills its process: without faults it is known how often each event is called."""

    @contextmanager
    def limits(self, seed: int) -> Iterator[None]:
        """As of its kind, and what would kill its process is done."""
        with super().limits(seed), patch.dict(FATES, {number: "is done" for number, fate in FATES.items() if fate == "kills"}):
            yield


class Hasty(Once):
    """``idempotent="unknown"``; what says that it has done nothing is due again at once."""

    def _trouble(self, offset: int) -> Exception:
        self.ledger.has_done_nothing(offset)
        return Retry(after="0s")


class FarBehind(AtMostOnce):
    """``idempotent="no"``; old events are older than ids are remembered."""

    @contextmanager
    def limits(self, seed: int) -> Iterator[None]:
        """As of its kind, and an age."""
        with super().limits(seed), patch("tests.chaos.simulation_faults.HISTORY_AGE_MS", BEHIND_MS):
            yield


class PlacedByHand(Once):
    """``idempotent="unknown"``; a tool of Kafka has committed where it begins, and commits are far apart."""

    @contextmanager
    def limits(self, seed: int) -> Iterator[None]:
        """As of its kind, and few commits."""
        with super().limits(seed), patch("tests.chaos.simulation_worker.COMMIT_SECONDS", 5.0):
            yield

    def processors(self, worker: Worker) -> Processors:
        """The tool has been here before the first worker."""
        if self._world.committed is None:
            self._world.committed = Committed(0, "")
        return super().processors(worker)
