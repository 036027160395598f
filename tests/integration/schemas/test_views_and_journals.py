"""Live views and journals of values framed by a schema registry, also of one that is unavailable for a while."""

from __future__ import annotations

import asyncio
import json

import pytest

from streams_app.embedded.ports import free_port
from streams_app.schemas.framing import framed
from streams_app.schemas.schema import SchemaDefinition, parsed
from tests.helpers.cli.commands import run
from tests.helpers.journal.journaled import Journaled
from tests.helpers.kafka.topics import read_topic
from tests.helpers.live.watched import COUNT, Watched
from tests.helpers.waiting import wait_until
from tests.helpers.worker.impatient import ImpatientWorker
from tests.helpers.worker.site import LIMIT_SECONDS, Site
from tests.integration.schemas.test_worker import forwarding
from tests.servers.apicurio import Apicurio

pytestmark = pytest.mark.timeout(300)

SCHEMA = json.dumps({
    "type": "record",
    "name": "Changed",
    "fields": [{"name": "account_id", "type": "string"}, {"name": "project", "type": "long"}, {"name": "id", "type": "long"}],
})  # fmt: skip


def values_of(apicurio: Apicurio, subject: str, count: int) -> list[bytes]:
    number = apicurio.register(subject, SCHEMA)
    schema = parsed(SchemaDefinition("AVRO", SCHEMA))
    return [framed(number, schema.encode({"account_id": "a", "project": 7, "id": at})) for at in range(count)]


def registry_at(port: int) -> str:
    return f'[schema_registry]\nurl = "http://127.0.0.1:{port}/apis/ccompat/v7"\ntimeout = "2s"\n'


async def test_view_waits_for_an_unavailable_registry_and_shows_every_item(site: Site, apicurio: Apicurio) -> None:
    watched, port = Watched(site), free_port()
    config = watched.config(made=COUNT | {"format": "avro"})
    config.write_text(config.read_text() + registry_at(port))
    await watched.topics(partitions=1)
    values = values_of(apicurio, f"{watched.source}-value", 3)
    unknown, broken = framed(2_000_000_000, b"?"), values[0][:5] + b"\xff"
    with site.worker(config) as worker:
        await watched.shows(config, "made", 0)
        await site.send("events", [(b"7", value) for value in (values[0], unknown, broken, *values[1:])])
        await wait_until(lambda: "schema registry" in worker.log(), LIMIT_SECONDS, "the view waits for the registry")
        await watched.has_state(config, "made", "behind", 0)
        async with forwarding(port, apicurio.port):
            await watched.shows(config, "made", 3)
            dead_letters = await read_topic(
                site.bootstrap, site.names.topic("dead"), until=lambda found: len(found) >= 2, timeout_seconds=LIMIT_SECONDS
            )
        code = await worker.terminate()

    assert [(unknown, b"unknown-schema"), (broken, b"wrong-format")] == [
        (dead_letter.value, dict(dead_letter.headers)["reason"]) for dead_letter in dead_letters
    ]
    assert 0 == code


async def test_journal_waits_for_an_unavailable_registry_and_keeps_the_bytes(site: Site, apicurio: Apicurio) -> None:
    journaled, port = Journaled(site), free_port()
    config = journaled.config(more=registry_at(port), format="avro")
    await journaled.topics(partitions=1)
    values = values_of(apicurio, f"{journaled.source}-value", 3)
    unknown = framed(2_000_000_000, b"?")
    with site.worker(config) as worker:
        await worker.wait_ready()
        await site.send("events", [(b"other", value) for value in (values[0], unknown, *values[1:])])
        await wait_until(lambda: "schema registry" in worker.log(), LIMIT_SECONDS, "the journal waits for the registry")
        assert ([], []) == await journaled.rows()
        async with forwarding(port, apicurio.port):
            await journaled.filed_up_to(3)
            read = await asyncio.to_thread(run, "journal", "read", "a", "--config", str(config))
            listed = await asyncio.to_thread(run, "journal", "read", "a", "--json", "--config", str(config))
            unkeyed = await asyncio.to_thread(run, "journal", "read", "--unkeyed", "--config", str(config))
            verified = await asyncio.to_thread(run, "journal", "verify", "--config", str(config))
        away = run("journal", "read", "a", "--config", str(config))
        code = await worker.terminate()

    rows, _ = await journaled.rows()
    assert values == [row.value for row in rows]
    assert [{"account_id": "a", "project": 7, "id": at} for at in range(3)] == [
        json.loads(line)["decoded"] for line in listed.out.splitlines()
    ]
    assert '0-0  {"account_id":"a","project":7,"id":0}' in read.out
    assert "the registry has no schema 2000000000" in unkeyed.out
    assert "nothing is wrong" in verified.text
    assert (3, 0) == (away.out.count("not decoded: http://127.0.0.1"), away.code)
    assert 0 == code


@pytest.mark.parametrize("what", ["view", "journal"])
async def test_worker_waiting_for_a_registry_is_not_considered_stuck(site: Site, what: str) -> None:
    watched, journaled = Watched(site), Journaled(site)
    await watched.topics(partitions=1)
    if what == "view":
        config = watched.config(made=COUNT | {"format": "avro"})
        config.write_text(config.read_text() + registry_at(9))
    else:
        config = journaled.config(more=registry_at(9), format="avro")
    await site.send("events", [(b"7", framed(1, b"?"))])
    with ImpatientWorker(config, site.folder) as worker:
        await wait_until(lambda: "schema registry" in worker.log(), LIMIT_SECONDS, "it waits for the registry")
        await worker.is_checked()
        assert worker.exit_code is None, worker.log()
        assert 0 == await worker.terminate(), worker.log()


async def test_check_pings_the_registry_of_a_view_and_a_journal(site: Site) -> None:
    journaled = Journaled(site)
    await journaled.topics(partitions=1)
    config = journaled.config(more=registry_at(9), format="protobuf")

    checked = run("check", "--config", str(config))

    assert (1, True) == (checked.code, "schema registry: http://127.0.0.1:9" in checked.text)
