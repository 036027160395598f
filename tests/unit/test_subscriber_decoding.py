"""A ``decode=`` that takes long holds up the whole worker, which the log says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from streams_app import Event, Received, subscriber
from streams_app.delivery.batch import TP
from streams_app.settings import Limits
from streams_app.subscribers.decoding import SLOW_MS, decode_of
from tests.manual_clock import ManualClock


class Paid(msgspec.Struct, frozen=True):
    order_id: str


@pytest.mark.parametrize(("takes_ms", "told"), [(SLOW_MS, 1), (SLOW_MS - 1, 0)])
def test_a_decode_that_takes_a_second_is_told(takes_ms: int, told: int, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()

    def decode(value: bytes) -> Any:
        clock.advance_ms(takes_ms)
        return {"order_id": value.decode()}

    paid = Event("order.paid", Paid, description="Paid.", keyed_by=None, decode=decode)

    @subscriber(paid, idempotent="yes", description="Ships.")
    def ship(event: Received[Paid]) -> None:
        """Does nothing."""

    record = SimpleNamespace(key=b"k", value=b"o1", headers=[], offset=7, timestamp=5)
    decode_of(ship, Limits(), None, clock=clock)(TP("orders", 0), record, 1)

    assert told == caplog.text.count("decode= of an event has held up the whole worker subscriber=ship seconds=1.0")
