"""An event is declared once, checked at once, and never changed."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from typing import Any, NamedTuple

import msgspec
import pytest
from pydantic import BaseModel

from streams_app import Event
from streams_app.errors import ConfigurationError
from tests.shop import OrderPaid, address_changed, order_paid, parcel_sent, stock_counted


def declared(key: str = "order.paid", payload: Any = OrderPaid, **options: Any) -> Event[Any, Any]:
    return Event(key, payload, **{"description": "Something has happened.", "keyed_by": None} | options)


def faults(*arguments: Any, **options: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        declared(*arguments, **options)
    return caught.value.faults


class Before(msgspec.Struct):
    before: str
    metadata: str


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    order_id: str


class ClosedModel(BaseModel, extra="forbid"):
    order_id: str


class Row(NamedTuple):
    order_id: str


class Camel(msgspec.Struct, rename="camel"):
    order_id: str


@dataclass
class Nowhere:
    field: Missing  # type: ignore[name-defined]  # noqa: F821  # the type that is missing is what is tested


def test_a_topic_is_called_like_the_event_unless_something_else_is_said() -> None:
    assert ("parcel.sent", "orders") == (parcel_sent.topic, order_paid.topic)


def test_a_declaration_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        order_paid.topic = "other"  # type: ignore[misc]  # what is tested


@pytest.mark.parametrize("event", [order_paid, parcel_sent, stock_counted, address_changed], ids=lambda event: event.key)
def test_structs_dataclasses_typed_dicts_and_pydantic_models_are_payloads(event: Event[Any, Any]) -> None:
    assert event.payload.__name__ in ("OrderPaid", "ParcelSent", "StockCounted", "AddressChanged")


@pytest.mark.parametrize("missing", ["description", "keyed_by"])
def test_what_has_no_default_has_to_be_said(missing: str) -> None:
    options: dict[str, Any] = {"description": "Something has happened.", "keyed_by": None}
    del options[missing]

    with pytest.raises(TypeError, match=missing):
        Event("order.paid", OrderPaid, **options)


@pytest.mark.parametrize("key", ["paid", "Order.paid", "order.", "order paid", "o.p" * 50, ""])
def test_a_key_is_a_domain_and_an_action(key: str) -> None:
    (fault,) = faults(key, topic="orders")

    assert "domain.action" in fault


@pytest.mark.parametrize("payload", [int, list[str], Row, "OrderPaid", OrderPaid | None])
def test_what_is_no_object_on_the_wire_is_no_payload(payload: Any) -> None:
    (fault,) = faults(payload=payload)

    assert "no object with fields" in fault or "no JSON Schema" in fault


@pytest.mark.parametrize("payload", [type("Plain", (), {"__annotations__": {"order_id": str}}), OrderPaid("o1", 500)])
def test_a_class_of_no_known_kind_is_told_which_kinds_there_are(payload: Any) -> None:
    (fault,) = faults(payload=payload)

    assert fault.endswith("is no object with fields: take a msgspec Struct, a dataclass, a TypedDict or a pydantic model")


def test_a_type_that_cannot_be_resolved_is_told() -> None:
    (fault,) = faults(payload=Nowhere)

    assert "Missing" in fault


def test_what_stands_beside_a_payload_cannot_be_in_it() -> None:
    (fault,) = faults(payload=Before)

    assert "the names before and metadata stand beside the payload" in fault


@pytest.mark.parametrize("payload", [Closed, ClosedModel])
def test_a_payload_lets_its_producers_add_fields(payload: type) -> None:
    (fault,) = faults(payload=payload)

    assert "forbids unknown fields" in fault


def test_the_field_of_the_key_is_one_of_the_payload() -> None:
    assert ["event 'order.paid': keyed_by = 'order' is no field of OrderPaid, did you mean 'order_id'?"] == faults(keyed_by="order")


def test_the_field_of_the_key_is_called_as_on_the_wire() -> None:
    assert "orderId" == declared(payload=Camel, keyed_by="orderId").keyed_by
    assert ["event 'order.paid': keyed_by = 'order_id' is no field of Camel, did you mean 'orderId'?"] == faults(
        payload=Camel, keyed_by="order_id"
    )


def test_all_faults_are_told_together() -> None:
    told = faults("Paid", Before, description=" ", topic="no topic", metadata=int, decode="json")

    assert ["the key", "description", "the payload", "the metadata", "topic", "decode"] == [
        next(word for word in ("the key", "description", "the payload", "the metadata", "topic", "decode") if f": {word}" in fault)
        for fault in told
    ]
