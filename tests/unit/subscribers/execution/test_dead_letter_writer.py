"""The headers of a subscriber's dead letters that describe the event."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streams_app.delivery.batch import TP
from streams_app.events.headers import Headers
from streams_app.settings import Limits
from streams_app.subscribers.declaration.replayed_event import OriginalPosition, replay_headers
from streams_app.subscribers.execution.dead_letter_writer import DeadLetterWriter
from streams_app.subscribers.execution.in_flight_event import InFlightEvent
from streams_app.subscribers.execution.retry_decision import dead_lettering
from tests.helpers.waiting import wait_until

PAID = TP("orders", 3)
REPLAYS = TP("shop.again", 0)
PUT_BACK = replay_headers("ship", OriginalPosition(PAID, 7, 1_700_000_000_000), [("ce_id", b"e1")])
PUT_BACK_UNNAMED = replay_headers("ship", OriginalPosition(PAID, 7, 1_700_000_000_000), [])


@pytest.mark.parametrize(
    ("tp", "headers", "event_id", "expected"),
    [
        (PAID, [("ce_id", b"e1")], "", b"e1"),
        (PAID, [], "", b"orders:3:5"),
        (PAID, [("ce_id", b"\xff")], "", b"orders:3:5"),
        (PAID, [("ce_id", b"e" * 600)], "", b"e" * 600),
        (PAID, [("ce_id", b"e" * 601)], "", b"orders:3:5"),
        (PAID, [("ce_id", b"e1")], "e2", b"e2"),
        (REPLAYS, PUT_BACK, "", b"e1"),
        (REPLAYS, PUT_BACK_UNNAMED, "", b"orders:3:7"),
        (REPLAYS, [("ce_id", b"e1")], "", b"e1"),
    ],
)
async def test_dead_letter_of_an_undecoded_event_has_the_received_id_or_its_position(
    tp: TP, headers: Headers, event_id: str, expected: bytes
) -> None:
    sent: list[Any] = []

    async def send(records: list[Any], on_failed: Any) -> None:
        sent.extend(records)

    sender = cast("Any", SimpleNamespace(send=send))
    writer = DeadLetterWriter(tp, "ship", sender, lambda works: None, limits=Limits(key_bytes=600))
    work = InFlightEvent(SimpleNamespace(offset=5, timestamp=0, headers=headers), 0, event_id=event_id)
    sending = asyncio.create_task(writer.forever())
    writer.put(work, dead_lettering(work, "crashed", "the process died 2 times while it ran"))
    await wait_until(lambda: sent, 60, "it is sent")
    sending.cancel()

    assert [("event-id", expected)] == [pair for pair in sent[0].headers if pair[0] == "event-id"]


@pytest.mark.parametrize(
    ("key", "reason", "is_ordered", "expected"),
    [
        (b"c1", "failed", True, "why; the next events of its key continue"),
        (b"c1", "failed", False, "why"),
        (None, "failed", True, "why"),
        (b"c1", "finished-late", True, "why"),
    ],
)
async def test_dead_letter_in_key_order_says_that_its_key_continues(
    key: bytes | None, reason: Any, is_ordered: bool, expected: str
) -> None:
    sent: list[Any] = []

    async def send(records: list[Any], on_failed: Any) -> None:
        sent.extend(records)

    sender = cast("Any", SimpleNamespace(send=send))
    writer = DeadLetterWriter(PAID, "ship", sender, lambda works: None, is_ordered=is_ordered)
    work = InFlightEvent(SimpleNamespace(offset=5, timestamp=0, headers=(), key=key), 0)
    sending = asyncio.create_task(writer.forever())
    writer.put(work, dead_lettering(work, reason, "why"))
    await wait_until(lambda: sent, 60, "it is sent")
    sending.cancel()

    assert [expected] == [one.detail for one in sent]


def test_truncated_traceback_keeps_its_end() -> None:
    work = InFlightEvent(
        SimpleNamespace(offset=5, timestamp=0, headers=(), key=None), 0, attempts=3, event_id="e1", first_failed_ms=7
    )
    one = dead_lettering(work, "failed", "why", ValueError("\u20ac" * 5_000 + "no such article"))
    headers = dict(one.headers)
    trace = headers.pop("trace")

    assert (2_000, True) == (len(trace), trace.endswith(b"no such article\n"))
    assert {"event-id": b"e1", "attempts": b"3", "first-failed-at-ms": b"7", "exception": b"ValueError"} == headers
