"""A schema registry itself, and servers that give answers which no registry should give."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from streams_app.errors import BadEventError, ConfigurationError
from streams_app.schemas.framing import framed
from streams_app.schemas.registry import ASKED_ANEW_MS, RegistryUnavailableError, SchemaRegistry, UnusableSchemaError, registry_of
from streams_app.schemas.schema import SchemaDefinition, parsed
from streams_app.schemas.waiting import PatientRegistry
from streams_app.settings import SchemaRegistrySettings, Settings
from tests.helpers.manual_clock import ManualClock
from tests.helpers.waiting import wait_until
from tests.servers.apicurio import Apicurio

MONEY = {"type": "record", "name": "Money", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}
ORDER = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [{"name": "id", "type": "string"}, {"name": "price", "type": "shop.Money"}],
}  # fmt: skip
MONEY_PROTO = 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'
ORDER_PROTO = 'syntax = "proto3"; import "shop/money.proto"; message Order { string id = 1; shop.Money price = 2; }'
EVENT = {"id": "o1", "price": {"cents": 5}}


def name() -> str:
    return f"t-{secrets.token_hex(6)}"


def registry(url: str, clock: ManualClock | None = None, **settings: Any) -> SchemaRegistry:
    return SchemaRegistry(SchemaRegistrySettings(url=url, **settings), clock or ManualClock())


async def test_avro_with_references_is_fetched_and_decoded(apicurio: Apicurio) -> None:
    money = name()
    apicurio.register(money, json.dumps(MONEY))
    reference = {"name": "shop.Money", "subject": money, "version": 1}
    number = apicurio.register(f"{name()}/of a topic", json.dumps(ORDER), references=[reference])
    value = framed(number, parsed(SchemaDefinition("AVRO", json.dumps(ORDER), {"shop.Money": json.dumps(MONEY)})).encode(EVENT))
    schemas = registry(apicurio.url)
    await schemas.prepare([None, b"{}", value])

    assert EVENT == json.loads(schemas.json(value, "avro"))


async def test_protobuf_with_references_is_fetched_and_decoded(apicurio: Apicurio) -> None:
    money = name()
    apicurio.register(money, MONEY_PROTO, schemaType="PROTOBUF")
    reference = {"name": "shop/money.proto", "subject": money, "version": 1}
    number = apicurio.register(name(), ORDER_PROTO, schemaType="PROTOBUF", references=[reference])
    value = framed(number, parsed(SchemaDefinition("PROTOBUF", ORDER_PROTO, {"shop/money.proto": MONEY_PROTO})).encode(EVENT))
    schemas = registry(apicurio.url)
    await schemas.prepare([value])

    assert EVENT == json.loads(schemas.json(value, "protobuf"))


async def test_schema_missing_from_the_registry_is_requested_repeatedly(apicurio: Apicurio) -> None:
    clock = ManualClock()
    schemas = registry(apicurio.url, clock)
    value = framed(2_000_000_000, b"")
    await schemas.prepare([value])
    with pytest.raises(BadEventError, match="unknown-schema: the registry has no schema 2000000000") as caught:
        schemas.json(value, "avro")
    before = schemas.missing([2_000_000_000])
    clock.advance_ms(ASKED_ANEW_MS + 1)
    await schemas.prepare([value])

    assert ("unknown-schema", []) == (caught.value.reason, before)


async def test_latest_schema_of_a_subject_is_requested_once_a_minute(apicurio: Apicurio) -> None:
    subject, clock = f"{name()}-value", ManualClock()
    apicurio.register(subject, json.dumps(MONEY))
    schemas = registry(apicurio.url, clock)
    first = await schemas.latest(subject, "avro")
    wider = {**MONEY, "fields": [*MONEY["fields"], {"name": "currency", "type": "string", "default": "EUR"}]}
    apicurio.register(subject, json.dumps(wider))
    second = await schemas.latest(subject, "avro")
    clock.advance_ms(60_001)
    third = await schemas.latest(subject, "avro")

    assert first == second
    assert third.id > first.id
    with pytest.raises(ConfigurationError, match="is of type AVRO, and the format is protobuf"):
        await registry(apicurio.url).latest(subject, "protobuf")


async def test_missing_subject_is_a_configuration_error(apicurio: Apicurio) -> None:
    with pytest.raises(ConfigurationError, match="has no subject 'nobody-value': register its schema first"):
        await registry(apicurio.url).latest("nobody-value", "avro")


async def test_ping_reports_a_server_that_is_no_registry(apicurio: Apicurio) -> None:
    await registry(apicurio.url).ping()

    with pytest.raises(RegistryUnavailableError, match="answers 404"):
        await registry(f"http://127.0.0.1:{apicurio.port}/wrong").ping()


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[str]:
    """Yield a server that gives one answer to everything."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/base/"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "text", "message"),
    [
        pytest.param(
            500, '{"error_code":50001,"message":"store is away"}', "answers 500 store is away", id="error of the registry"
        ),
        pytest.param(429, "", "answers 429", id="too many requests"),
        pytest.param(401, '{"error_code":401,"message":"Unauthorized"}', "answers 401 Unauthorized", id="no access"),
        pytest.param(404, "<html>", "answers 404", id="page of another server"),
        pytest.param(404, '{"error_code":404,"message":"HTTP 404"}', "answers 404", id="wrong path"),
        pytest.param(200, "<html>", "answers 200", id="no JSON"),
        pytest.param(200, "3", "answers 200", id="no object"),
    ],
)
async def test_response_other_than_a_schema_is_an_outage(status: int, text: str, message: str) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text)

    async with answering(answer) as url:
        schemas = registry(url)
        with pytest.raises(RegistryUnavailableError, match=message):
            await schemas.prepare([framed(1, b"")])

        assert [1] == schemas.missing([1])


async def test_slow_or_unresponsive_registry_is_an_outage() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    async with answering(answer) as url:
        with pytest.raises(RegistryUnavailableError, match="TimeoutError"):
            await registry(url, timeout="100ms").prepare([framed(1, b"")])
    with pytest.raises(RegistryUnavailableError):
        await registry(url).prepare([framed(1, b"")])


PROTO_OF_A_MISSING_FILE = 'syntax = "proto3";\nimport "nope.proto";\nmessage M { strin a = 1; }'


@asynccontextmanager
async def answering_with(schemas: list[dict[str, Any]]) -> AsyncIterator[str]:
    """Yield a registry that has schema 1, always the last one of a list, which belongs to the subject ``orders-value``."""

    async def answer(request: web.Request) -> web.StreamResponse:
        is_versions = request.path.endswith("/ids/1/versions")
        return web.json_response([{"subject": "orders-value", "version": 3}] if is_versions else schemas[-1])

    async with answering(answer) as url:
        yield url


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"schema": "nonsense"}, "schema 1 cannot be used"),
        ({"schema": '{"type":"record"}'}, "schema 1 cannot be used"),
        ({"schema": "x", "schemaType": "XML"}, "schemas of type XML are not supported"),
        ({"schema": PROTO_OF_A_MISSING_FILE, "schemaType": "PROTOBUF"}, 'nope.proto: File not found.; line 2: Import "nope.proto"'),
        ({"schema": PROTO_OF_A_MISSING_FILE, "schemaType": "PROTOBUF"}, 'line 3: "strin" is not defined'),
    ],
)
async def test_schema_that_cannot_be_used_is_a_fault_with_the_words_of_the_compiler_and_its_subject(
    schema: dict[str, Any], words: str
) -> None:
    async with answering_with([schema]) as url:
        with pytest.raises(UnusableSchemaError) as caught:
            await registry(url).prepare([framed(1, b"")])

    assert words in str(caught.value)
    assert "(subject orders-value version 3)" in str(caught.value)


async def test_events_of_a_schema_that_cannot_be_used_wait_until_it_is_repaired(caplog: pytest.LogCaptureFixture) -> None:
    schemas, clock, reports = [{"schema": "nonsense"}], ManualClock(), list[str | None]()
    async with answering_with(schemas) as url:
        patient = PatientRegistry(registry(url, clock), clock, reports.append, reports_outages=False)
        waiting = asyncio.create_task(patient.prepare([framed(1, b"")], "a partition"))
        await wait_until(lambda: len(reports) >= 2, 10, "it is reported")
        assert patient.is_away
        schemas.append({"schema": '"string"'})
        clock.advance_ms(ASKED_ANEW_MS + 1)
        await waiting

        assert b'"x"' == patient.registry.json(framed(1, b"\x02x"), "avro")
    assert (False, None) == (patient.is_away, reports[-1])
    assert "schema 1 cannot be used" in str(reports[0])
    logged = [record.getMessage() for record in caplog.records if record.name.endswith("outage_reporter")]
    assert 1 == len([line for line in logged if line.startswith("schema 1 does not work")])


async def test_fault_of_a_subject_is_that_of_its_latest_schema(apicurio: Apicurio) -> None:
    subject = f"{name()}-value"
    apicurio.register(subject, json.dumps(MONEY))
    async with answering_with([{"schema": "nonsense"}]) as url:
        fault = await registry(url).fault_of("orders-value")

    assert [None, None] == [await registry(apicurio.url).fault_of(one) for one in (subject, "nobody-value")]
    assert "the schema of 'orders-value' cannot be used" in str(fault)


async def test_credentials_are_sent_and_appear_in_no_message(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        credentials = base64.b64decode(request.headers["Authorization"].removeprefix("Basic ")).decode()
        asked.append((request.path, credentials))
        return web.json_response({"schema": '"string"'}) if credentials == "app:canary" else web.Response(status=401)

    path = tmp_path / "password"
    path.write_text("canary\n")
    async with answering(answer) as url:
        await registry(url, username="app", password_file=path).prepare([framed(7, b"")])
        path.write_text("canary2")
        with pytest.raises(RegistryUnavailableError) as caught:
            await registry(url, username="app", password_file=path).prepare([framed(7, b"")])

    assert [("/base/schemas/ids/7", "app:canary"), ("/base/schemas/ids/7", "app:canary2")] == asked
    assert "canary" not in str(caught.value)


def test_registry_is_required_only_by_formats_with_schemas() -> None:
    settings = Settings.model_validate({"app_id": "a", "events": {"catalogue": "a:b"}})

    assert None is registry_of(settings, ["json", "debezium"])
    with pytest.raises(ConfigurationError, match=r'schema_registry\.url: format = "avro" needs a schema registry'):
        registry_of(settings, ["json", "avro"])
