"""The shop of the examples, with servers: its view publishes, its worker handles events, and a dead letter is replayed."""

from __future__ import annotations

import asyncio
import json
import os

import httpx
import pytest

from tests.helpers.cli.commands import Ran, run
from tests.helpers.events.web import web_server
from tests.helpers.kafka.topics import read_topic
from tests.helpers.worker.site import LIMIT_SECONDS, Site, with_topics
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.cache import ROOT

pytestmark = pytest.mark.timeout(200)


async def test_shop_view_publishes_and_a_rejected_event_of_its_subscriber_is_replayed(site: Site) -> None:
    paid, sent = site.names.topic("paid"), site.names.topic("sent")
    text = (ROOT / "examples" / "shop.py").read_text("utf-8")
    (site.folder / "this_shop.py").write_text(with_topics(text, OrderPaid=paid, ParcelSent=sent))
    config = site.config('[events]\ncatalogue = "this_shop:catalogue"\n' + site.fold("folded", "updates"))
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(site.folder)]), "STREAMS_APP_CONFIG": str(config)}

    async def command(*words: str) -> Ran:
        return await asyncio.to_thread(lambda: run(*words, cwd=None, **environment))

    async def read(topic: str) -> dict[str, str]:
        """Return the headers of the first record, and its order; with at-least-once delivery there may be a copy."""
        record, *_ = await read_topic(site.bootstrap, topic, until=lambda found: len(found) >= 1, timeout_seconds=LIMIT_SECONDS)
        return {name: value.decode() for name, value in record.headers} | {"order": json.loads(record.value)["order_id"]}

    created = await command("topics", "create")
    uvicorn = ("-m", "uvicorn", "this_shop:app", "--port", "PORT")
    with web_server(uvicorn, site.folder, {"STREAMS_APP_CONFIG": str(config)}) as url:
        async with httpx.AsyncClient(base_url=url, timeout=LIMIT_SECONDS) as client:
            answer = await client.post("/orders", json={"order_id": "o1", "cents": 5, "country": "no"})
    event_id = answer.json()["event_id"]
    with WorkerProcess(config, site.folder, environment):
        dead_letter = await read(f"{paid}.ship.dead")
    replayed = await command("dead-letters", "replay", "--subscriber", "ship")
    with WorkerProcess(config, site.folder, environment | {"SHOP_COUNTRIES": "de,fr,no"}):
        parcel = await read(sent)
    listed = await command("dead-letters", "list", "--subscriber", "ship")

    assert (0, 202, 0) == (created.code, answer.status_code, replayed.code)
    assert "  rejected, replayed " in listed.out
    assert (event_id, "rejected", "no carrier goes to 'no'") == (
        dead_letter["event-id"],
        dead_letter["reason"],
        dead_letter["detail"],
    )
    assert (event_id, "o1") == (parcel["ce_causationid"], parcel["order"])
