"""The Django view of docs/reference/subscribers.md publishes from processes that were forked after their parent had published."""

from __future__ import annotations

import httpx
import pytest

from tests.checkout.pages import ROOT, fenced
from tests.helpers.events.web import web_server
from tests.helpers.kafka.topics import read_topic
from tests.helpers.worker.site import LIMIT_SECONDS, Site, with_topics

pytestmark = pytest.mark.timeout(200)


async def test_django_view_publishes_committed_events_from_each_forked_process(site: Site) -> None:
    (program,) = [text for text in fenced(ROOT / "docs" / "reference" / "subscribers.md", "python") if "from django" in text]
    topic = site.names.topic("paid")
    (site.folder / "shop_views.py").write_text(with_topics(program, OrderPaid=topic))
    config = site.config(site.fold("folded", "updates"))
    await site.topics("paid", partitions=1)

    server = ("-m", "tests.integration.events.django_site", "PORT", str(site.folder / "shop.db"))
    with web_server(server, site.folder, {"STREAMS_APP_CONFIG": str(config)}) as url:
        async with httpx.AsyncClient(base_url=url, timeout=LIMIT_SECONDS) as client:
            first = await client.post("/orders", json={"order_id": "o1", "cents": 5})
            await client.post("/rolled-back", json={"order_id": "o2", "cents": 5})
            away = await client.post("/away", json={"order_id": "o3", "cents": 5})
            rejected = await client.post("/orders", json={"order_id": "o4", "cents": "5"})
            last = await client.post("/orders", json={"order_id": "o5", "cents": 5})
    found = await read_topic(site.bootstrap, topic, until=lambda found: len(found) >= 3, timeout_seconds=LIMIT_SECONDS)
    parent, *ids = [dict(record.headers)["ce_id"].decode() for record in found]
    processes = {parent.removeprefix("by "), *(answer.headers["process"] for answer in (first, last))}

    assert ["order-paid-o1", "order-paid-o5"] == ids
    assert 3 == len(processes)
    assert [(202, "order-paid-o1"), (503, "order-paid-o3"), (202, "order-paid-o5")] == [
        (answer.status_code, answer.json()["event_id"]) for answer in (first, away, last)
    ]
    assert (400, {"error": "Expected `int`, got `str` - at `$.cents`"}) == (rejected.status_code, rejected.json())
