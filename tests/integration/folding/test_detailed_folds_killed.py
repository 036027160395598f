"""Detailed folds in real workers that are killed: closing events, kept events and sums."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.helpers.kafka.topics import read_topic
from tests.helpers.worker.site import LIMIT_SECONDS, Site


def item(group: str, number: int, **rest: Any) -> tuple[bytes, bytes]:
    return group.encode(), json.dumps({"account_id": group, "metrics": [f"n{number}"], **rest}).encode()


async def folded_across_a_kill(
    site: Site, config: Path, output: str, items: Sequence[tuple[bytes, bytes]], events: int
) -> list[dict[str, Any]]:
    """Return the records with that many events, each once; the first worker is killed with -9 in the middle of the items."""
    middle = len(items) // 2
    with site.worker(config) as worker:
        await worker.wait_ready()
        await site.send("events", items[:middle])
        worker.kill()
    with site.worker(config):
        await site.send("events", items[middle:])
        records = await site.records(output, events)
    return list({dict(record.headers)["fold-id"]: json.loads(record.value or b"") for record in records}.values())


async def test_each_order_is_one_record_from_its_first_event_to_the_closing_one(site: Site) -> None:
    await site.topics("events", "closed", "events.dead", partitions=1)
    config = site.config(
        site.fold("closed", "events", quiet_period="1h") + '[folds.closed.close_when]\nstatus = ["done", "cancelled"]\n'
    )
    items = [
        item(f"a{number % 5}", number, status="done" if number % 20 >= 15 else "open") for number in range(200)
    ]  # each group is closed by every fourth event of its own
    found = await folded_across_a_kill(site, config, "closed", items, 200)

    assert {"closed"} == {value["fold"]["reason"] for value in found}
    assert 50 == len(found)
    assert {4} == {value["fold"]["events"] for value in found}
    runs = [range(start + group, start + group + 20, 5) for start in range(0, 200, 20) for group in range(5)]
    assert {tuple(sorted(f"n{at}" for at in run)) for run in runs} == {tuple(value["metrics"]) for value in found}


async def test_events_are_in_one_record_in_order_after_worker_kills(site: Site) -> None:
    await site.topics("events", "kept", "events.dead", partitions=1)
    kept = site.fold("kept", "events", quiet_period="1h").replace('changed = "metrics"\n', "")
    config = site.config(kept + 'keep = "events"\nfields = ["n"]\nmax_bytes = 400\n')
    items = [item(f"a{number % 5}", number, n=number) for number in range(600)]
    items[7:7] = [item("a0", 0, n="x" * 400)]
    found = await folded_across_a_kill(site, config, "kept", items, 400)
    dead = await read_topic(
        site.bootstrap, site.names.topic("events.dead"), until=lambda found: len(found) > 0, timeout_seconds=LIMIT_SECONDS
    )
    by_group: dict[str, list[tuple[int, list[int]]]] = {}
    for value in found:
        numbers = [event["n"] for event in value["events"]]
        by_group.setdefault(value["account_id"], []).append((numbers[0], numbers))
        assert value["fold"]["events"] == len(numbers)

    assert {"max_bytes"} == {value["fold"]["reason"] for value in found}
    assert [b"too-large"] == [dict(record.headers)["reason"] for record in dead]
    for group, parts in by_group.items():
        numbers = [number for _, part in sorted(parts) for number in part]
        assert list(range(int(group[1]), int(group[1]) + 5 * len(numbers), 5)) == numbers


async def test_sums_count_each_event_once_after_worker_kills(site: Site) -> None:
    await site.topics("events", "sums", "events.dead", partitions=1)
    config = site.config(
        site.fold("sums", "events", quiet_period="2s")
        + '[folds.sums.keep]\nlikes = "sum"\nseen = "max"\nposts = "count"\nrank = "mean"\nopened = "first"\n'
    )
    events = [
        (
            b"a",
            json.dumps(
                {"account_id": "a", "metrics": {"likes": 2**60, "seen": number, "posts": 1, "rank": number, "opened": number}}
            ).encode(),
        )
        for number in range(400)
    ]
    values = await folded_across_a_kill(site, config, "sums", events, 400)

    assert 400 * 2**60 == sum(value["metrics"]["likes"] for value in values)
    assert 400 == sum(value["metrics"]["posts"] for value in values)
    assert 399 == max(value["metrics"]["seen"] for value in values)
    assert sum(range(400)) == sum(value["metrics"]["rank"] * value["metrics"]["posts"] for value in values)
    assert all(value["metrics"]["seen"] - value["metrics"]["opened"] == value["metrics"]["posts"] - 1 for value in values)


async def test_event_that_is_sent_twice_counts_once_after_worker_kills(site: Site) -> None:
    await site.topics("events", "paid", "events.dead", partitions=1)
    config = site.config(
        site.fold("paid", "events", quiet_period="4s", dedupe_by="event_id") + '[folds.paid.keep]\nlikes = "sum"\n'
    )
    sent = [
        (b"a", json.dumps({"account_id": "a", "metrics": {"likes": 1}, "event_id": number // 2}).encode()) for number in range(400)
    ]
    values = await folded_across_a_kill(site, config, "paid", sent, 200)

    assert 200 == sum(value["metrics"]["likes"] for value in values) == sum(value["fold"]["events"] for value in values)
