"""A real worker folds and files the same events: each record is explained by its raw events, which its HTTP server shows, too."""

from __future__ import annotations

import json
import random
from collections import Counter

from tests.helpers.cli.commands import run
from tests.helpers.folding.checker import event
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import Site, metric
from tests.integration.health.asking import get

EVENTS = 400


async def test_each_record_of_a_worker_is_explained_by_its_raw_events(site: Site) -> None:
    await site.topics("events", "folded", "kept", "events.dead", partitions=3)
    journal = f'[journals.accounts]\nsource = "{site.names.topic("events")}"\nkey = "account_id"\n'
    kept = site.fold("kept", "events", quiet_period="500ms", keep="events").replace('changed = "metrics"\n', "")
    config = site.config(site.fold("folded", "events", quiet_period="500ms", max_events=20) + kept + journal)
    chosen = random.Random(3)
    sent = [event(f"account_{chosen.randrange(8)}", f"n{chosen.randrange(6)}") for _ in range(EVENTS)]
    with site.worker(config) as worker:
        await site.send("events", sent)
        records = await site.records("folded", EVENTS)
        await wait_until(lambda: metric(worker, "streams_app_journal_entries_total") == EVENTS, 60, "all events are filed")
        for record in records:
            value = json.loads(record.value)
            arguments = ["read", record.key.decode(), "--fold", value["fold"]["id"], "--json"]
            ran = run("journal", arguments[0], "--config", str(config), *arguments[1:])
            found = [json.loads(line) for line in ran.out.splitlines()]

            assert (0, value["fold"]["events"]) == (ran.code, len(found)), ran.text
            assert value["metrics"] == sorted({name for one in found for name in one["changed"]})
            assert {record.key.decode()} == {json.loads(one["value"])["account_id"] for one in found}
        for record in (await site.records("kept", EVENTS))[:2]:
            value = json.loads(record.value)
            ran = run("journal", "read", "--config", str(config), record.key.decode(), "--fold", value["fold"]["id"], "--json")
            found = [json.loads(line) for line in ran.out.splitlines()]

            assert value["events"] == [json.loads(one["value"]) for one in found]
            assert {None} == {one["changed"] for one in found}
        by_key: Counter[str] = Counter(key.decode() for key, _ in sent)
        for key, count in by_key.items():
            status, page = await get(f"{worker.url}/journal/accounts?key={key}&limit=1000")

            assert (200, count, True) == (status, len(page["entries"]), page["caught_up"])
        await worker.terminate()
