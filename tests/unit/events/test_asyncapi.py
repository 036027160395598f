"""The AsyncAPI document is valid, contains what is declared, and shows breaking changes."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from streams_app import Catalogue, Event, Settings
from streams_app.cli import run
from streams_app.events.codec import encode
from streams_app.events.compatibility import breaking_changes
from streams_app.subscribers.declaration.subscription import subscriptions_of
from streams_app.subscribers.running.description import asyncapi_of
from tests.helpers.events.shop import SETTINGS, OrderPaid, PaidBy, catalogue, order_paid


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "streams.toml"
    path.write_text(SETTINGS + '[subscribers.recompute]\ntimeout = "1m"\n', "utf-8")
    return path


def document_of(declared: Catalogue, config: Path) -> dict[str, Any]:
    settings = Settings.load(config, {})
    return json.loads(json.dumps(asyncapi_of(settings.app_id, declared, subscriptions_of(declared, settings))))


@pytest.fixture
def document(config: Path) -> dict[str, Any]:
    return document_of(catalogue, config)


def resolved(document: dict[str, Any], reference: str) -> Any:
    found: Any = document
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return found


def references(part: Any) -> Iterator[str]:
    if isinstance(part, list):
        for inner in part:
            yield from references(inner)
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for inner in part.values():
            yield from references(inner)


def keys(part: dict[str, Any]) -> set[str]:
    return {key for key in part if not key.startswith("x-")}


def test_each_object_has_only_fields_of_asyncapi(document: dict[str, Any]) -> None:
    assert {"asyncapi", "info", "defaultContentType", "channels", "operations", "components"} == document.keys()
    assert ("3.0.0", {"title", "version"}) == (document["asyncapi"], document["info"].keys())
    for channel in document["channels"].values():
        assert {"address", "messages"} == keys(channel)
    for operation in document["operations"].values():
        assert keys(operation) <= {"action", "channel", "messages", "description"}
        assert operation["action"] in ("send", "receive")
    for message in document["components"]["messages"].values():
        assert keys(message) <= {"name", "description", "headers", "payload", "correlationId", "contentType", "bindings"}
    for name in (name for part in document["components"].values() for name in part):
        assert re.fullmatch(r"[a-zA-Z0-9._-]+", name)


def test_each_reference_resolves_and_operations_use_messages_of_their_channel(document: dict[str, Any]) -> None:
    for reference in references(document):
        assert resolved(document, reference)
    for operation in document["operations"].values():
        for message in operation["messages"]:
            assert message["$ref"].startswith(operation["channel"]["$ref"] + "/messages/")


def test_each_schema_is_valid(document: dict[str, Any]) -> None:
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft7Validator.check_schema(schema)


def test_published_event_conforms_to_the_document(document: dict[str, Any]) -> None:
    schema = {**document["components"]["messages"]["order.paid"]["payload"], "components": document["components"]}
    _, value = encode(order_paid, OrderPaid("o1", 5), OrderPaid("o1", 4), PaidBy("card"))

    jsonschema.Draft7Validator(schema).validate(json.loads(value))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema).validate({"order_id": "o1", "cents": "5"})


def test_events_are_in_the_channels_of_their_topics(document: dict[str, Any]) -> None:
    assert {
        "orders": ["order.paid"],
        "parcel.sent": ["parcel.sent"],
        "stock.counted": ["stock.counted"],
        "address.changed": ["address.changed"],
        "post-metric-updated.account-metrics": ["account-metrics"],
    } == {channel["address"]: list(channel["messages"]) for channel in document["channels"].values()}


def test_subscriber_states_the_guarantee_of_its_deployment(document: dict[str, Any]) -> None:
    operations = document["operations"]

    assert {
        "action": "receive",
        "channel": {"$ref": "#/channels/orders"},
        "messages": [{"$ref": "#/channels/orders/messages/order.paid"}],
        "description": "Hands the parcel to the carrier.",
        "x-idempotent": "no",
        "x-rate": "50/s",
        "x-timeout": "20s",
        "x-retry": {"attempts": 8, "first": "1s", "factor": 3.0, "longest": "5m"},
        "x-dead-letters": "orders.ship.dead",
        "x-consumer-group": "social.ship",
    } == operations["ship"]
    assert ("key", "1m", ["UnknownAccount"], 20) == (
        operations["recompute"]["x-ordered"],
        operations["recompute"]["x-timeout"],
        operations["recompute"]["x-retry"]["never"],
        operations["recompute"]["x-retry"]["by"]["RateLimited"]["attempts"],
    )


def test_externally_published_event_has_no_send_operation(config: Path) -> None:
    event = Event("order.paid", OrderPaid, description="In Avro.", keyed_by=None, decode=json.loads)
    found = document_of(Catalogue(events=(event,)), plain(config))

    assert {} == found["operations"]
    assert "application/octet-stream" == found["components"]["messages"]["order.paid"]["contentType"]


def plain(config: Path) -> Path:
    """Return the settings without any of subscribers."""
    config.write_text(SETTINGS, "utf-8")
    return config


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    discriminator: str


class Node(msgspec.Struct):
    pet: Cat | Dog
    inner: list[Node] = []
    named: dict[str, int] = {}
    note: str | None = None


def of(payload: Any, config: Path, **options: Any) -> dict[str, Any]:
    event = Event("pet.seen", payload, **{"description": "Seen.", "keyed_by": None} | options)
    return document_of(Catalogue(events=(event,)), plain(config))


def test_recursive_type_is_compared_completely(config: Path) -> None:
    found = of(Node, config)

    assert [] == breaking_changes(found, copy.deepcopy(found))
    assert "discriminator" in found["components"]["schemas"]["pet.seen.Dog"]["properties"]
    assert "propertyName" not in json.dumps(found)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ([("a", int), ("b", str, "x")], []),
        ([("a", int), ("b", str, "y"), ("c", int, 0)], []),
        ([("a", int)], ["pet.seen.b: the field is gone"]),
        ([("a", int), ("b", str)], ["pet.seen.b: the field is newly required"]),
        ([("a", int), ("c", int), ("b", str, "x")], ["pet.seen.c: the field is newly required"]),
        ([("a", str), ("b", str, "x")], ['pet.seen.a: the type has changed from {"type": "integer"} to {"type": "string"}']),
        (
            [("a", int | None), ("b", str, "x")],
            ['pet.seen.a: the type has changed from {"type": "integer"} to {"type": "integer"} or {"type": "null"}'],
        ),
    ],
)
def test_breaking_change_is_reported(config: Path, now: list[Any], expected: list[str]) -> None:
    old = of(msgspec.defstruct("Seen", [("a", int), ("b", str, "x")]), config)
    changes = breaking_changes(old, of(msgspec.defstruct("Seen", now), config))

    assert expected == changes


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        (list[int], list[str], "pet.seen.a[]"),
        (dict[str, int], dict[str, str], "pet.seen.a{}"),
        (msgspec.defstruct("In", [("x", int)]), msgspec.defstruct("In", [("x", str)]), "pet.seen.a.x"),
        (list, list[int], "pet.seen.a[]"),
        (list[int], list, "pet.seen.a[]"),
        (dict, dict[str, int], "pet.seen.a{}"),
        (dict[str, int], dict, "pet.seen.a{}"),
        (tuple[int, str], tuple[int, int], "pet.seen.a[1]"),
    ],
)
def test_nested_breaking_change_is_reported_with_its_path(config: Path, old: Any, new: Any, place: str) -> None:
    changes = breaking_changes(
        of(msgspec.defstruct("Seen", [("a", old)]), config), of(msgspec.defstruct("Seen", [("a", new)]), config)
    )

    assert changes[0].startswith(f"{place}: the type has changed")


def test_removed_or_moved_event_is_a_breaking_change(config: Path) -> None:
    old = of(Node, config)

    assert ["pet.seen: it is no longer in the topic pet.seen"] == breaking_changes(old, of(Node, config, topic="pets"))
    assert ["pet.seen: the event is gone"] == breaking_changes(old, document_of(Catalogue(), plain(config)))


class Visit(msgspec.Struct):
    pet: str
    owner: str


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        ("pet", "owner", "pet.seen: it is keyed by owner, and was by pet"),
        ("pet", None, "pet.seen: it is keyed by nothing, and was by pet"),
        (None, "pet", "pet.seen: it is keyed by pet, and was by nothing"),
    ],
)
def test_changed_key_breaks_the_order_that_readers_rely_on(config: Path, was: str | None, now: str | None, expected: str) -> None:
    changes = breaking_changes(of(Visit, config, keyed_by=was), of(Visit, config, keyed_by=now))

    assert [expected] == changes


def test_document_of_an_older_version_without_keys_breaks_nothing(config: Path) -> None:
    old = of(Visit, config, keyed_by="pet")
    del old["components"]["messages"]["pet.seen"]["x-keyed-by"]

    assert [] == breaking_changes(old, of(Visit, config, keyed_by="owner"))


def test_changed_value_format_is_a_breaking_change(config: Path) -> None:
    changes = breaking_changes(of(Visit, config), of(Visit, config, decode=json.loads))

    assert ["pet.seen: it is written as application/octet-stream, and was as application/json"] == changes


def test_command_compares_with_a_file(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "old.json"

    assert 0 == run(["events", "asyncapi", "--config", str(config)])
    old.write_text(capsys.readouterr().out, "utf-8")
    assert 0 == run(["events", "asyncapi", "--config", str(config), "--against", str(old)])
    assert "no breaking change\n" == capsys.readouterr().out
    old.write_text(old.read_text("utf-8").replace('"cents"', '"pence"'), "utf-8")
    assert 1 == run(["events", "asyncapi", "--config", str(config), "--against", str(old)])
    assert ["order.paid.pence: the field is gone", "order.paid.cents: the field is newly required"] == [
        *capsys.readouterr().out.splitlines()
    ]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"asyncapi": "2.6.0"}',
        '{"asyncapi": "3.0.0", "components": {"messages": []}}',
        '{"asyncapi": "3.0.0", "channels": 3}',
    ],
)
def test_invalid_document_is_reported(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    old = tmp_path / "old.json"
    old.write_text(text, "utf-8")

    assert 1 == run(["events", "asyncapi", "--config", str(config), "--against", str(old)])
    assert f"error: --against {old}: " in capsys.readouterr().err


def test_document_without_end_is_reported(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == run(["events", "asyncapi", "--config", str(config), "--against", "/dev/zero"])
    assert "--against /dev/zero: it cannot be read: it has more than 16777216 bytes" in capsys.readouterr().err


def test_command_lists_the_declarations(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == run(["events", "list", "--config", str(config)])

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["order.paid", "orders", "order_id", "OrderPaid"] == lines[1][:4]
    assert ["recompute", "account-metrics", "post-metric-updated.account-metrics", "yes", "key"] == lines[-1][:5]
    (head,) = (line for line in lines if line[:1] == ["SUBSCRIBER"])
    assert ["ORDERED", "CONCURRENCY", "RATE", "TIMEOUT", "ATTEMPTS", "ENABLED"] == head[4:10]


def test_catalogue_argument_is_required(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(SETTINGS.split("[events]", maxsplit=1)[0], "utf-8")

    assert 1 == run(["events", "list", "--config", str(config)])
    assert "events.catalogue is not set" in capsys.readouterr().err
