"""An event is declared once, validated at its declaration, and immutable."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from typing import Any, NamedTuple

import msgspec
import pytest
from pydantic import BaseModel

from streams_app import Event
from streams_app.errors import ConfigurationError
from tests.helpers.events.shop import OrderPaid, address_changed, order_paid, parcel_sent, stock_counted


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
    field: Missing  # type: ignore[name-defined]  # noqa: F821  # the missing type is the fault under test


def test_topic_defaults_to_the_event_key() -> None:
    assert ("parcel.sent", "orders") == (parcel_sent.topic, order_paid.topic)


def test_declaration_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        order_paid.topic = "other"  # type: ignore[misc]  # the assignment is the fault under test


@pytest.mark.parametrize("event", [order_paid, parcel_sent, stock_counted, address_changed], ids=lambda event: event.key)
def test_structs_dataclasses_typed_dicts_and_pydantic_models_are_payloads(event: Event[Any, Any]) -> None:
    assert event.payload.__name__ in ("OrderPaid", "ParcelSent", "StockCounted", "AddressChanged")


@pytest.mark.parametrize("missing", ["description", "keyed_by"])
def test_arguments_without_a_default_are_required(missing: str) -> None:
    options: dict[str, Any] = {"description": "Something has happened.", "keyed_by": None}
    del options[missing]

    with pytest.raises(TypeError, match=missing):
        Event("order.paid", OrderPaid, **options)


@pytest.mark.parametrize("key", ["paid", "Order.paid", "order.", "order paid", "o.p" * 50, ""])
def test_event_key_is_a_domain_and_an_action(key: str) -> None:
    (fault,) = faults(key, topic="orders")

    assert "domain.action" in fault


@pytest.mark.parametrize("payload", [int, list[str], Row, "OrderPaid", OrderPaid | None])
def test_payload_must_be_an_object_on_the_wire(payload: Any) -> None:
    (fault,) = faults(payload=payload)

    assert "not an object with fields" in fault or "no JSON Schema" in fault


@pytest.mark.parametrize("payload", [type("Plain", (), {"__annotations__": {"order_id": str}}), OrderPaid("o1", 500)])
def test_class_of_an_unsupported_kind_is_reported_with_the_supported_ones(payload: Any) -> None:
    (fault,) = faults(payload=payload)

    assert fault.endswith("is not an object with fields: take a msgspec Struct, a dataclass, a TypedDict or a pydantic model")


def test_unresolvable_type_is_reported() -> None:
    (fault,) = faults(payload=Nowhere)

    assert "Missing" in fault


def test_payload_field_may_not_have_an_envelope_name() -> None:
    (fault,) = faults(payload=Before)

    assert "the names before and metadata stand beside the payload" in fault


@pytest.mark.parametrize("payload", [Closed, ClosedModel])
def test_payload_that_forbids_additional_fields_is_a_fault(payload: type) -> None:
    (fault,) = faults(payload=payload)

    assert "forbids unknown fields" in fault


def test_key_field_is_a_payload_field() -> None:
    assert ["event 'order.paid': keyed_by = 'order' is not a field of OrderPaid, did you mean 'order_id'?"] == faults(
        keyed_by="order"
    )


def test_key_field_uses_its_wire_name() -> None:
    assert "orderId" == declared(payload=Camel, keyed_by="orderId").keyed_by
    assert ["event 'order.paid': keyed_by = 'order_id' is not a field of Camel, did you mean 'orderId'?"] == faults(
        payload=Camel, keyed_by="order_id"
    )


def test_all_faults_are_reported_together() -> None:
    reported = faults("Paid", Before, description=" ", topic="no topic", metadata=int, decode="json")

    assert ["the key", "description", "the payload", "the metadata", "topic", "decode"] == [
        next(word for word in ("the key", "description", "the payload", "the metadata", "topic", "decode") if f": {word}" in fault)
        for fault in reported
    ]
