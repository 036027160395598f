"""Subscribers of events in the formats of Debezium and of CloudEvents."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from streams_app import Event, Received, subscriber
from streams_app.delivery.batch import TP
from streams_app.errors import BadEventError, ConfigurationError
from streams_app.events.asyncapi import document
from streams_app.events.unwrapping import attributes_of
from streams_app.settings import Limits
from streams_app.subscribers.execution.decoding import decode_of
from streams_app.testing import SubscriberTester

P = TP("shop.public.orders", 0)


class Order(msgspec.Struct, frozen=True):
    id: int
    cents: int | None = None


class Change(msgspec.Struct, frozen=True):
    op: str
    ts_ms: int | None = None


class Paid(msgspec.Struct, frozen=True):
    id: str
    at: datetime | None = None


changed = Event(
    "order.changed", Order, description="A row changed.", keyed_by=None, metadata=Change, topic=P.topic, format="debezium"
)
paid = Event("order.paid", Paid, description="Paid.", keyed_by=None, topic="orders", format="cloudevents")


@subscriber(changed, idempotent="yes", description="Indexes.")
def index(event: Received[Order, Change]) -> None:
    """Do nothing."""


@subscriber(paid, idempotent="unknown", description="Ships.")
def ship(event: Received[Paid]) -> None:
    """Do nothing."""


def received(of: Any, value: Any, headers: Any = (), tp: TP = P) -> Received[Any, Any] | None:
    raw = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    record = SimpleNamespace(key=b'{"id":1}', value=raw, headers=list(headers), offset=7, timestamp=5)
    found = decode_of(of, Limits(), None)(tp, record, 1)
    return None if found is None else found.event


def change(op: str, before: Any = None, after: Any = None) -> dict[str, Any]:
    return {"before": before, "after": after, "source": {"table": "orders"}, "op": op, "ts_ms": 9, "transaction": None}


@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: {"schema": {}, "payload": value}], ids=["bare", "with schema"])
@pytest.mark.parametrize(
    ("value", "data", "before"),
    [
        pytest.param(change("c", None, {"id": 1, "cents": 5}), Order(1, 5), None, id="create"),
        pytest.param(change("u", {"id": 1, "cents": 5}, {"id": 1, "cents": 6}), Order(1, 6), Order(1, 5), id="update"),
        pytest.param(change("u", None, {"id": 1, "cents": 6}), Order(1, 6), None, id="update without the row before it"),
        pytest.param(change("d", {"id": 1, "cents": 6}), Order(1, 6), Order(1, 6), id="delete"),
        pytest.param(change("c", None, '{"id": 1}'), Order(1), None, id="document as text"),
    ],
)
def test_subscriber_receives_row_and_row_before_and_envelope_of_a_change_event(
    value: Any, data: Order, before: Order | None, wrap: Any
) -> None:
    event = received(index, wrap(value))

    assert event is not None
    assert (data, before, Change(value["op"], 9)) == (event.data, event.before, event.metadata)
    assert "shop.public.orders:0:7" == event.id


@pytest.mark.parametrize(
    "value", [None, {"ts_ms": 1}, {"status": "BEGIN", "id": "571"}, {"schema": {}, "payload": None}]
)  # fmt: skip
def test_tombstones_heartbeats_and_transaction_metadata_are_skipped(value: Any) -> None:
    assert None is received(index, value)


@pytest.mark.parametrize(
    ("of", "value", "reason", "detail"),
    [
        (index, change("u"), "wrong-format", "op 'u' and no row"),
        (index, {"id": 1}, "wrong-format", "it has no op"),
        (index, change("u", None, {"id": "1"}), "not-valid", "Expected `int`, got `str` - at `$.id`"),
        (index, change("u", {"id": None}, {"id": 1}), "not-valid", "Expected `int`, got `null` - at `$.before.id`"),
        (index, [], "not-valid", "Expected `object`"),
        (index, b"{", "not-valid", ""),
        (index, b'{"op":"c","after":"\\ud800"}', "not-valid", ""),
        (ship, {"id": "o1"}, "wrong-format", "it has no specversion"),
        (ship, {"specversion": "1.0", "type": "order.paid"}, "wrong-format", "without data"),
        (ship, {"specversion": "1.0", "type": "order.paid", "data": 1}, "not-valid", ""),
        (ship, {"specversion": "1.0", "type": "order.paid", "data_base64": "?"}, "wrong-format", "not Base64"),
    ],
)
def test_event_not_in_its_format_is_a_dead_letter(of: Any, value: Any, reason: str, detail: str) -> None:
    with pytest.raises(BadEventError) as caught:
        received(of, value)

    assert reason == caught.value.reason
    assert detail in caught.value.detail


CLOUD = {
    "specversion": "1.0", "type": "order.paid", "source": "/shop", "id": "e1", "time": "2026-01-01T00:00:00Z", "tenant": "t1",
    "traceparent": "00-1-2-01", "sampled": True, "nothing": None, "data": {"id": "o1", "at": "2026-01-01T00:00:00Z"},
}  # fmt: skip


def test_attributes_of_a_cloud_event_in_structured_mode_are_those_of_the_event() -> None:
    event = received(ship, CLOUD, headers=[("content-type", b"application/cloudevents+json"), ("ce_id", b"other")])

    assert event is not None
    assert (Paid("o1", datetime(2026, 1, 1, tzinfo=UTC)), "e1", "/shop") == (event.data, event.id, event.source)
    assert {"tenant": "t1", "sampled": "true"} == event.context
    assert ("traceparent", b"00-1-2-01") in event.headers


def test_attributes_of_any_event_are_headers() -> None:
    raw, headers = json.dumps(CLOUD).encode(), [("ce_id", b"of a header")]
    found = dict(attributes_of("cloudevents", headers, raw))

    assert (b"e1", b"order.paid") == (found["ce_id"], found["ce_type"])
    assert headers == attributes_of("json", headers, raw) == attributes_of("cloudevents", headers, b"{")
    assert headers == attributes_of("cloudevents", headers, None)


def test_cloud_event_of_another_type_is_skipped_and_before_in_data_is_the_payload_before() -> None:
    event = received(ship, CLOUD | {"data": {"id": "o2", "before": {"id": "o1"}}})

    assert None is received(ship, CLOUD | {"type": "order.shipped"})
    assert event is not None and Paid("o1") == event.before


def test_field_before_of_plain_json_without_a_type_header_is_not_the_payload_before() -> None:
    plain = Event("order.paid", Paid, description="Paid.", keyed_by=None)

    @subscriber(plain, idempotent="yes", description="Ships.")
    def read(event: Received[Paid]) -> None:
        """Do nothing."""

    value = {"id": "o2", "before": {"id": "o1"}}
    foreign, own = received(read, value), received(read, value, headers=[("ce_type", b"order.paid")])

    assert foreign is not None and own is not None
    assert (None, Paid("o1")) == (foreign.before, own.before)


def test_change_events_run_in_the_test_kit_and_cannot_be_published() -> None:
    with SubscriberTester(index) as kit:
        kit.produce(changed, json.dumps(change("d", {"id": 1})).encode())
        kit.produce(changed, None)
        kit.produce(changed, json.dumps(change("t")).encode())
        with pytest.raises(ConfigurationError, match="format = 'debezium' is published by others"):
            kit.publish(changed, Order(1))

        assert ["done"] == [run.outcome for run in kit.runs(index)]
        assert ["wrong-format"] == [dead_letter.reason for dead_letter in kit.dead_letters(index)]


def test_asyncapi_describes_the_envelope_without_a_send_operation() -> None:
    found = document("shop", [changed, paid], [], [])
    messages = found["components"]["messages"]

    assert {} == found["operations"]
    assert ["before", "after"] == list(messages["order.changed"]["payload"]["properties"])
    assert "application/cloudevents+json" == messages["order.paid"]["contentType"]


@pytest.mark.parametrize(
    ("options", "fault"),
    [({"format": "xml"}, "format = 'xml' must be 'json'"), ({"format": "debezium", "decode": bytes}, "exclude each other")],
)
def test_declaration_names_what_is_wrong_with_a_format(options: Any, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        Event("order.paid", Paid, description="Paid.", keyed_by=None, **options)
