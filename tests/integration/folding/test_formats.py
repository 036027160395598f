"""Workers that fold the change events of a table, as Debezium produces them."""

from __future__ import annotations

import json
from typing import Any

from tests.helpers.kafka.topics import read_topic
from tests.helpers.worker.site import LIMIT_SECONDS, Site


def change(op: str, before: Any = None, after: Any = None) -> bytes:
    envelope = {"before": before, "after": after, "source": {"table": "orders"}, "op": op, "ts_ms": 1, "transaction": None}
    return json.dumps({"schema": {"type": "struct"}, "payload": envelope}).encode()


async def test_change_events_of_a_table_become_records_of_its_changed_columns(site: Site) -> None:
    await site.topics("orders", "changed", "orders.dead", partitions=1)
    config = site.config(
        site.fold("changed", "orders", format="debezium", group_key="id", changed="@columns", changed_as="metrics", keep="last")
    )
    key = json.dumps({"schema": {}, "payload": {"id": 1}}).encode()
    items = [
        (key, change("c", None, {"id": 1, "status": "new", "cents": 5})),
        (b"t", b'{"status":"BEGIN","id":"571"}'),
        (key, change("u", {"id": 1, "status": "new", "cents": 5}, {"id": 1, "status": "paid", "cents": 5})),
        (None, b'{"ts_ms":1}'),
        (key, change("t")),
        (b"2", change("d", {"id": 2, "status": "new", "cents": 7})),
        (b"2", None),
    ]
    with site.worker(config) as worker:
        await worker.wait_ready()
        await site.send("orders", items)
        records = await site.records("changed", 3)
        dead_letters = await read_topic(
            site.bootstrap, site.names.topic("orders.dead"), until=lambda found: len(found) >= 1, timeout_seconds=LIMIT_SECONDS
        )
        code = await worker.terminate()

    values = [json.loads(record.value) for record in records]
    last: dict[int, dict[str, Any]] = {}
    for value in values:
        last.setdefault(value["id"], {}).update(value["metrics"])
    assert {1: {"id": 1, "status": "paid", "cents": 5}, 2: {"id": None, "status": None, "cents": None}} == last
    assert [items[4]] == [(dead_letter.key, dead_letter.value) for dead_letter in dead_letters]
    assert b"wrong-format" == dict(dead_letters[0].headers)["reason"]
    assert 0 == code
