"""What the dead letters of a subscriber say of the event."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streams_app.delivery.batch import TP
from streams_app.events.headers import Headers
from streams_app.subscribers.letters import Letters
from streams_app.subscribers.put_back import Origin, addressed
from streams_app.subscribers.work import Work, letter
from tests.helpers import wait_until

PAID = TP("orders", 3)
AGAIN = TP("shop.again", 0)
PUT_BACK = addressed("ship", Origin(PAID, 7, 1_700_000_000_000), [("ce_id", b"e1")])
PUT_BACK_UNNAMED = addressed("ship", Origin(PAID, 7, 1_700_000_000_000), [])


@pytest.mark.parametrize(
    ("tp", "headers", "known", "expected"),
    [
        (PAID, [("ce_id", b"e1")], "", b"e1"),
        (PAID, [], "", b"orders:3:5"),
        (PAID, [("ce_id", b"\xff")], "", b"orders:3:5"),
        (PAID, [("ce_id", b"e" * 100_000)], "", b"orders:3:5"),
        (PAID, [("ce_id", b"e1")], "e2", b"e2"),
        (AGAIN, PUT_BACK, "", b"e1"),
        (AGAIN, PUT_BACK_UNNAMED, "", b"orders:3:7"),
        (AGAIN, [("ce_id", b"e1")], "", b"e1"),
    ],
)
async def test_a_letter_of_what_was_not_decoded_names_its_event_by_the_received_id_or_its_place(
    tp: TP, headers: Headers, known: str, expected: bytes
) -> None:
    sent: list[Any] = []

    async def send(refused: list[Any]) -> None:
        sent.extend(refused)

    letters = Letters(tp, "ship", cast("Any", SimpleNamespace(send=send)), lambda works: None)
    work = Work(SimpleNamespace(offset=5, timestamp=0, headers=headers), 0, event_id=known)
    sending = asyncio.create_task(letters.forever())
    letters.put(work, letter(work, "crashed", "the process died 2 times while it ran"))
    await wait_until(lambda: sent, 60, "it is sent")
    sending.cancel()

    assert [("event-id", expected)] == [pair for pair in sent[0].headers if pair[0] == "event-id"]
