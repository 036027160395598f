"""Subscribers of events that are framed by a schema registry, and events published with a schema."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from streams_app import Event, Received, Settings, subscriber
from streams_app.delivery.batch import TP
from streams_app.errors import BadEventError, ConfigurationError
from streams_app.events.asyncapi import document
from streams_app.events.publishing import Events
from streams_app.schemas.cache import NotFetchedError, SchemaCache
from streams_app.schemas.framing import framed
from streams_app.settings import Limits
from streams_app.subscribers.declaration.catalogue import Catalogue
from streams_app.subscribers.execution.decoding import decode_of
from streams_app.testing import SubscriberTester
from tests.helpers.schemas.schemas import avro, schema_cache


class Changed(msgspec.Struct, frozen=True):
    id: str
    m: dict[str, int] = {}


class Order(msgspec.Struct, frozen=True):
    id: int
    cents: int | None = None


changed = Event("account.changed", Changed, description="Changed.", keyed_by="id", format="avro")
row = Event("order.changed", Order, description="A row changed.", keyed_by=None, format="debezium")


@subscriber(changed, idempotent="yes", description="Writes.")
def write(event: Received[Changed]) -> None:
    """Do nothing."""


@subscriber(row, idempotent="yes", description="Indexes.")
def index(event: Received[Order]) -> None:
    """Do nothing."""


def received(of: Any, value: bytes, schemas: SchemaCache | None) -> Any:
    record = SimpleNamespace(key=b"a", value=value, headers=[("ce_type", of.source.key.encode())], offset=7, timestamp=5)
    found = decode_of(of, Limits(), None, schemas=schemas)(TP("t", 0), record, 1)
    return None if found is None else found.event


def test_subscriber_receives_the_payload_of_an_avro_event() -> None:
    assert Changed("a", {"x": 1}) == received(write, avro(1, {"id": "a", "m": {"x": 1}}), schema_cache()).data


def test_subscriber_receives_the_row_of_a_framed_change_event() -> None:
    event = received(index, avro(2, {"before": {"id": 1, "cents": 5}, "after": {"id": 1}, "op": "u"}), schema_cache())

    assert (Order(1), Order(1, 5)) == (event.data, event.before)


def test_schema_that_was_not_fetched_is_no_dead_letter() -> None:
    with pytest.raises(NotFetchedError):
        received(write, avro(1, {"id": "a", "m": {}}), schema_cache(2))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"id":"a"}', "wrong-format"),
        (framed(1, b""), "wrong-format"),
        (avro(3, {"id": 1}), "not-valid"),
        (b"\0\xff\xff\xff\xff", "unknown-schema"),
    ],
)
def test_bad_value_is_a_dead_letter(value: bytes, reason: str) -> None:
    with pytest.raises(BadEventError) as caught:
        received(write, value, schema_cache())

    assert reason == caught.value.reason


def test_subscriber_tester_publishes_and_reads_plain_json() -> None:
    with SubscriberTester(write) as kit:
        kit.publish(changed, Changed("a", {"x": 1}))

        assert ["done"] == [run.outcome for run in kit.runs(write)]


def test_publisher_of_a_format_with_schemas_needs_a_registry() -> None:
    settings = Settings.model_validate({"app_id": "a", "events": {"catalogue": "a:b"}})
    with pytest.raises(ConfigurationError, match='format = "avro" needs a schema registry'):
        Events(settings, Catalogue(events=(changed,)))


def test_asyncapi_names_the_media_type_and_has_a_send_operation() -> None:
    found = document("shop", [changed], [], [])

    assert "application/vnd.apache.avro" == found["components"]["messages"]["account.changed"]["contentType"]
    assert ["send.account.changed"] == list(found["operations"])
