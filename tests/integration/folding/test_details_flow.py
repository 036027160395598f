"""Folds whose events say more than what changed, by real workers that are killed."""

from __future__ import annotations

import json
from typing import Any

from tests.integration.site import Site


def item(group: str, number: int, **rest: Any) -> tuple[bytes, bytes]:
    return group.encode(), json.dumps({"account_id": group, "metrics": [f"n{number}"], **rest}).encode()


async def test_each_order_is_one_record_from_its_first_event_to_the_one_that_closes_it(site: Site) -> None:
    await site.topics("events", "closed", "events.dead", partitions=1)
    config = site.config(
        site.fold("closed", "events", quiet_period="1h") + '[folds.closed.close_when]\nstatus = ["done", "cancelled"]\n'
    )
    items = [
        item(f"a{number % 5}", number, status="done" if number % 20 >= 15 else "open") for number in range(200)
    ]  # each group is closed by every fourth event of its own
    with site.worker(config) as worker:
        await worker.wait_ready()
        await site.send("events", items[:90])
        worker.kill()
    with site.worker(config):
        await site.send("events", items[90:])
        records = await site.records("closed", 200)
    found = {dict(record.headers)["fold-id"]: json.loads(record.value or b"") for record in records}

    assert {"closed"} == {value["fold"]["reason"] for value in found.values()}
    assert 50 == len(found)
    assert {4} == {value["fold"]["events"] for value in found.values()}
    runs = [range(start + group, start + group + 20, 5) for start in range(0, 200, 20) for group in range(5)]
    assert {tuple(sorted(f"n{at}" for at in run)) for run in runs} == {tuple(value["metrics"]) for value in found.values()}
