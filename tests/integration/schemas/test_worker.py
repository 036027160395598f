"""Workers that fold, handle and publish events by the schemas of a registry, also of one that is unavailable for a while."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from streams_app import Event, Events, Settings
from streams_app.embedded.ports import free_port
from streams_app.envelopes import Format
from streams_app.errors import BadEventError
from streams_app.schemas.framing import framed
from streams_app.schemas.registry import RegistryUnavailableError
from streams_app.schemas.schema import SchemaDefinition, parsed
from streams_app.subscribers.declaration.catalogue import Catalogue
from tests.helpers.cli.commands import run
from tests.helpers.kafka.topics import read_topic
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.apicurio import Apicurio
from tests.servers.cache import ROOT

SCHEMA = json.dumps({
    "type": "record",
    "name": "Changed",
    "fields": [{"name": "account_id", "type": "string"}, {"name": "metrics", "type": {"type": "map", "values": "long"}}],
})  # fmt: skip
PROTO = 'syntax = "proto3"; message Changed { string account_id = 1; map<string, int64> metrics = 2; }'
FORMATS = {"avro": ("AVRO", SCHEMA), "protobuf": ("PROTOBUF", PROTO)}

CATALOGUE = """
import os
import msgspec
from streams_app import Catalogue, Event, Received, subscriber

class Changed(msgspec.Struct, frozen=True):
    account_id: str
    metrics: dict[str, int]

changed = Event(
    "account.changed", Changed, description="Changed.", keyed_by="account_id", topic=os.environ["EVENTS"], format="FORMAT"
)

@subscriber(changed, idempotent="yes", description="Writes.")
async def write(event: Received[Changed]) -> None:
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(f"{event.data.account_id} {event.data.metrics}\\n")

catalogue = Catalogue(events=(changed,), subscribers=(write,))
"""


WAITING = {
    'streams_app_not_ready{cause="schema-registry"} 1.0',
    'streams_app_waiting_for{subscriber="write",what="schema-registry"} 1.0',
}


class Changed(msgspec.Struct, frozen=True):
    account_id: str
    metrics: dict[str, int]


@asynccontextmanager
async def forwarding(port: int, to_port: int) -> AsyncIterator[None]:
    """Forward a port to a registry for the block."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", to_port)
            await asyncio.gather(copy(reader, there_writer), copy(there_reader, writer))
        except OSError:
            writer.close()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(forward, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()


@pytest.mark.parametrize("format_", ["avro", "protobuf"])
async def test_fold_and_subscriber_wait_for_an_unavailable_registry_and_skip_nothing(
    site: Site, apicurio: Apicurio, format_: str
) -> None:
    await site.topics("events", partitions=1)
    port, ledger = free_port(), site.folder / "ledger"
    (site.folder / "framed_events.py").write_text(CATALOGUE.replace("FORMAT", format_))
    config = site.config(
        f'[schema_registry]\nurl = "http://127.0.0.1:{port}/apis/ccompat/v7"\ntimeout = "2s"\n'
        + '[events]\ncatalogue = "framed_events:catalogue"\n'
        + site.fold("folded", "events", format=format_, keep="last")
    )
    schema_type, text = FORMATS[format_]
    number = apicurio.register(f"{site.names.topic('events')}-value", text, schemaType=schema_type)
    schema = parsed(SchemaDefinition(schema_type, text))
    values = [framed(number, schema.encode({"account_id": "a", "metrics": {name: at}})) for at, name in enumerate(("x", "y", "x"))]
    unknown, broken = framed(2_000_000_000, b"?"), framed(number, b"\0\xff")
    environment = {
        "EVENTS": site.names.topic("events"), "LEDGER": str(ledger), "PYTHONPATH": os.pathsep.join([str(site.folder), str(ROOT)]),
    }  # fmt: skip
    created = run("topics", "create", "--config", str(config), cwd=None, **environment)
    assert created.code == 0, created.text
    with WorkerProcess(config, site.folder, environment) as worker:
        await worker.wait_ready()
        await site.send("events", [(b"a", value) for value in (*values, unknown, broken)])

        async def is_waiting() -> bool:
            _, body = await worker.get("/health/ready")
            _, metrics = await worker.get("/metrics")
            return "the schema registry does not answer" in body and WAITING <= set(metrics.splitlines())

        await wait_until(is_waiting, LIMIT_SECONDS, "the worker waits for the registry")
        assert not ledger.exists()
        async with forwarding(port, apicurio.port):
            outcome = await site.outcome("folded", 3)
            await worker.wait_ready()
            dead_letters = await read_topic(
                site.bootstrap, site.names.topic("events.dead"), until=lambda found: len(found) >= 2, timeout_seconds=LIMIT_SECONDS
            )
            await wait_until(
                lambda: ledger.exists() and len(ledger.read_text().splitlines()) == 3, LIMIT_SECONDS, "all are handled"
            )
        code = await worker.terminate()

    last: dict[str, int] = {}
    for value in outcome.values.values():
        last |= value["metrics"]
    assert {"x": 2, "y": 1} == last
    assert [(unknown, b"unknown-schema"), (broken, b"wrong-format")] == [
        (dead_letter.value, dict(dead_letter.headers)["reason"]) for dead_letter in dead_letters
    ]
    assert ["a {'x': 0}", "a {'x': 2}", "a {'y': 1}"] == sorted(ledger.read_text().splitlines())
    assert 0 == code


@pytest.mark.parametrize("format_", ["avro", "protobuf", "json-schema"])
async def test_published_event_is_framed_by_the_latest_schema_of_its_subject(
    site: Site, apicurio: Apicurio, format_: Format
) -> None:
    await site.topics("events", partitions=1)
    topic = site.names.topic("events")
    schema_type, text = FORMATS.get(format_, ("JSON", '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'))
    number = apicurio.register(f"{topic}-value", text, schemaType=schema_type)
    event = Event("account.changed", Changed, description="Changed.", keyed_by="account_id", topic=topic, format=format_)
    settings = Settings.load(site.config(f'[schema_registry]\nurl = "{apicurio.url}"\n[events]\ncatalogue = "a:b"\n'), {})
    async with Events(settings, Catalogue(events=(event,))) as events:
        await events.publish(event, Changed("a", {"x": 1}))
    (record,) = await read_topic(site.bootstrap, topic, until=lambda found: len(found) >= 1, timeout_seconds=LIMIT_SECONDS)

    assert b"a" == record.key
    assert framed(number, b"") == record.value[:5]
    assert {"account_id": "a", "metrics": {"x": 1}} == parsed(SchemaDefinition(schema_type, text)).decode(record.value[5:])


async def test_event_incompatible_with_the_latest_schema_is_not_sent(site: Site, apicurio: Apicurio) -> None:
    await site.topics("events", partitions=1)
    topic = site.names.topic("events")
    narrow = {"type": "record", "name": "Changed", "fields": [{"name": "account_id", "type": "string"}]}
    apicurio.register(f"{topic}-value", json.dumps(narrow))
    event = Event("account.changed", Changed, description="Changed.", keyed_by="account_id", topic=topic, format="avro")
    registry = f'[schema_registry]\nurl = "{apicurio.url}"\n'
    settings = Settings.load(site.config(registry + '[events]\ncatalogue = "a:b"\n'), {})
    async with Events(settings, Catalogue(events=(event,))) as events:
        with pytest.raises(BadEventError, match=r"not-valid: account\.changed does not fit schema"):
            await events.publish(event, Changed("a", {"x": 1}))
    away = settings.model_copy(
        update={"schema_registry": settings.schema_registry.model_copy(update={"url": "http://127.0.0.1:9"})}
    )
    async with Events(away, Catalogue(events=(event,))) as events:
        with pytest.raises(RegistryUnavailableError):
            await events.publish(event, Changed("a", {"x": 1}))


async def test_check_and_tune_query_the_registry(site: Site, apicurio: Apicurio, tmp_path: Path) -> None:
    await site.topics("events", "folded", "events.dead", partitions=1)
    number = apicurio.register(f"{site.names.topic('events')}-value", SCHEMA)
    schema = parsed(SchemaDefinition("AVRO", SCHEMA))
    value = framed(number, schema.encode({"account_id": "a", "metrics": {"x": 1}}))
    await site.send("events", [(b"a", value)] * 20)
    fold = site.fold("folded", "events", format="avro")
    config = site.config(f'[schema_registry]\nurl = "{apicurio.url}"\n' + fold)
    away = site.config('[schema_registry]\nurl = "http://127.0.0.1:9"\n' + fold, "away.toml")
    checked, tuned = run("check", "--config", str(config)), run("tune", "--config", str(config), "--json")
    missed, untuned = run("check", "--config", str(away)), run("tune", "--config", str(away), "--json")

    assert f"schema registry {apicurio.url} answers" in checked.text
    assert 20 == json.loads(tuned.out)["events"]
    assert (1, 75) == (missed.code, untuned.code)
    assert "schema registry: http://127.0.0.1:9" in missed.text
