"""Bounds on the headers of events: bytes in flight, and headers that are too large."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from streams_app import Received
from streams_app.events.headers import Headers
from streams_app.settings import EventsSettings, Limits, Settings
from streams_app.subscribers.execution.in_flight_event import HEADER_BYTES, sizes_of
from streams_app.testing import SubscriberTester
from tests.helpers.subscribers.kit import paid, seen_by, subscribed


def test_record_size_counts_key_value_and_headers_including_empty_ones() -> None:
    headers = [("a", b"12"), ("", b""), ("left-out", None)]
    records = [
        SimpleNamespace(key=b"k", value=b"1234", headers=headers),
        SimpleNamespace(key=None, value=None, headers=()),
    ]

    assert [5 + 11 + 3 * HEADER_BYTES, 0] == sizes_of(records)


def test_reader_with_many_in_flight_bytes_of_headers_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams_app.subscribers.running.processor.MAX_UNFINISHED_BYTES", 3_000)

    async def ship(event: Received[object]) -> None:
        raise ConnectionError

    one = subscribed(ship)
    with SubscriberTester(one) as kit:
        for _ in range(20):
            kit.produce(paid, b'{"order_id": "o1"}', headers=[("trace", b"x" * 1_000)])

        assert 3 == len(seen_by(kit, one))
        kit.advance("1h")
        kit.dead_letters(one)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [([("ce_x", b"y" * 96)], []), ([("ce_x", b"y" * 97)], ["too-large"]), ([("ce_type", b"another"), ("ce_x", b"y" * 97)], [])],
    ids=["at the limit", "beyond it", "of another event"],
)
def test_headers_beyond_the_value_limit_make_their_event_too_large(headers: Headers, expected: list[str]) -> None:
    async def ship(event: Received[object]) -> None:
        """Do nothing."""

    one = subscribed(ship)
    settings = Settings(app_id="shop", events=EventsSettings(catalogue="shop:catalogue"), limits=Limits(value_bytes=100))
    with SubscriberTester(one, settings=settings) as kit:
        kit.produce(paid, b'{"order_id": "o1"}', headers=headers)

        assert expected == [dead_letter.reason for dead_letter in kit.dead_letters(one)]
