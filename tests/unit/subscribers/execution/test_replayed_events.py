"""An event replayed for a subscriber is decoded as the original event, and by that subscriber alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from streams_app.delivery.batch import TP
from streams_app.errors import BadEventError
from streams_app.settings import Limits
from streams_app.subscribers.declaration.replayed_event import (
    RECEIVED_BYTES,
    OriginalPosition,
    received_headers,
    replay_headers,
    replay_topic,
)
from streams_app.subscribers.execution.decoding import DecodedRecord, decode_of
from tests.helpers.events.shop import ship

REPLAYS_TOPIC = replay_topic("social")
ORIGIN = OriginalPosition(TP("orders", 3), 1041, 1_700_000_000_000)
VALUE = b'{"order_id": "o1", "cents": 5}'
EVENT = [("ce_type", b"order.paid"), ("ce_userid", b"u7")]


def decoded(headers: Sequence[tuple[str, bytes | None]], topic: str = REPLAYS_TOPIC) -> DecodedRecord | None:
    decode = decode_of(ship, Limits(), None, REPLAYS_TOPIC)
    return decode(TP(topic, 0), SimpleNamespace(key=b"o1", value=VALUE, headers=headers, offset=7, timestamp=5), 1)


def event_of(found: DecodedRecord | None) -> Any:
    assert found is not None
    return found.event


def test_replayed_event_has_its_original_position_time_and_id() -> None:
    event = event_of(decoded(replay_headers("ship", ORIGIN, EVENT)))

    assert ("orders", 3, 1041, 1041) == (event.topic, event.partition, event.offset, event.version)
    assert ("orders:3:1041", datetime.fromtimestamp(1_700_000_000, UTC)) == (event.id, event.timestamp)
    assert {"userid": "u7"} == event.context


def test_replayed_event_keeps_the_id_of_its_publisher() -> None:
    assert "e1" == event_of(decoded(replay_headers("ship", ORIGIN, [*EVENT, ("ce_id", b"e1")]))).id


def test_replayed_event_has_no_deduplication_id() -> None:
    named = [*EVENT, ("ce_id", b"e1")]
    found = [decoded(replay_headers("ship", ORIGIN, named)), decoded(named, topic="orders"), decoded(EVENT, topic="orders")]

    assert ["", "e1", ""] == [one.own_id and one.event_id for one in found if one]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ([("ce_id", b"1"), ("ce_source", b"/eu")], [("ce_id", b"1"), ("ce_source", b"/eu")], True),
        ([("ce_id", b"1"), ("ce_source", b"/eu")], [("ce_source", b"/eu"), ("ce_time", b"now"), ("ce_id", b"1")], True),
        ([("ce_id", b"1")], [("ce_id", b"1"), ("ce_source", b"")], True),
        ([("ce_id", b"1"), ("ce_source", b"/eu")], [("ce_id", b"1"), ("ce_source", b"/us")], False),
        ([("ce_id", b"1"), ("ce_source", b"/eu")], [("ce_id", b"1")], False),
        ([("ce_id", b"bc"), ("ce_source", b"a")], [("ce_id", b"c"), ("ce_source", b"ab")], False),
        ([("ce_id", b"1"), ("ce_source", b"\xff")], [("ce_id", b"1"), ("ce_source", b"\xfe")], False),
        # A fold id names its fold and the offsets of its events; it needs no source.
        ([("fold-id", b"f:s:0:1-2"), ("ce_source", b"/eu")], [("fold-id", b"f:s:0:1-2")], True),
    ],
)  # fmt: skip
def test_event_is_identified_by_its_source_and_id(one: Any, other: Any, is_same: bool) -> None:
    first, second = (decoded([*EVENT, *headers], topic="orders") for headers in (one, other))
    assert first and second and first.own_id

    assert is_same == (first.own_id == second.own_id)


def test_event_identity_has_a_bounded_size_for_any_source() -> None:
    found = decoded([*EVENT, ("ce_id", b"1"), ("ce_source", b"s" * 5_000)], topic="orders")

    assert found is not None
    assert 17 == len(found.own_id)


@pytest.mark.parametrize(
    "headers", [replay_headers("recompute", ORIGIN, EVENT), EVENT, []], ids=["another", "no subscriber", "none at all"]
)
def test_event_for_another_subscriber_or_for_none_is_skipped(headers: Any) -> None:
    assert decoded(headers) is None


@pytest.mark.parametrize("origin", [None, b"", b"orders:3:x:5", b"a/b:3:1:5"])
def test_replayed_event_without_its_original_position_is_invalid(origin: bytes | None) -> None:
    headers: Any = replay_headers("ship", ORIGIN, EVENT)
    headers[1] = (headers[1][0], origin)
    with pytest.raises(BadEventError, match="do not contain its original position"):
        decoded(headers)


def test_replay_headers_in_the_original_topic_are_ignored() -> None:
    assert "orders:0:7" == event_of(decoded(replay_headers("recompute", ORIGIN, EVENT), topic="orders")).id


def test_event_headers_are_stored_with_their_number() -> None:
    assert [("received-headers", b"2"), *EVENT] == received_headers(EVENT)


def test_oversized_headers_are_dropped_and_their_size_is_stored() -> None:
    assert [("header-bytes-not-kept", b"16385")] == received_headers([("a", bytes(RECEIVED_BYTES))])
