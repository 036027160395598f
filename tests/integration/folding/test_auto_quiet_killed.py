"""A quiet period that sets itself in real workers, one of which is killed after a change."""

from __future__ import annotations

import json
from collections import defaultdict

from tests.helpers.folding.auto_quiet import GAP_MS, GROUPS, regular_events
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site, metric, send_at, until_folded

BEGIN_MS = 1_700_000_000_000
EACH = 12
"""Number of events of each group before the worker is killed, and of those after it."""


async def test_each_event_is_in_one_record_when_a_worker_is_killed_after_a_change_of_the_quiet_period(site: Site) -> None:
    await site.topics("events", "auto", "events.dead", partitions=1)
    config = site.config(
        site.fold("auto", "events", backlog="sessions").replace('quiet_period = "1s"\n', "")
        + '[folds.auto.quiet_period]\nauto = "knee"\nat_least = "10s"\ndefault = "1m"\nat_most = "30m"\n'
    )
    events = regular_events(BEGIN_MS, BEGIN_MS + 2 * EACH * GAP_MS)[: 2 * EACH * GROUPS]
    sent = [(event.group[1:].decode(), event.timestamp_ms, event.offset // GROUPS) for event in events]
    middle = len(sent) // 2
    # An event after a long silence closes the last fold of each group at once; its own fold stays open.
    closing = [(group, events[-1].timestamp_ms + 3_600_000, 2 * EACH) for group, _, _ in sent[:GROUPS]]
    with site.worker(config) as worker:
        await worker.wait_ready()
        await send_at(site, "events", sent[:middle])
        await wait_until(lambda: "quiet period changed from 1m to 2m" in worker.log(), LIMIT_SECONDS, "the quiet period is longer")
        await send_at(site, "events", sent[middle : middle + GROUPS])
        await until_folded(worker, middle + GROUPS)  # a range after the change stores it
        await send_at(site, "events", [*sent[middle + GROUPS :], *closing])
        worker.kill()
    with site.worker(config) as worker:
        records = await site.records("auto", len(sent))
        await worker.wait_ready()
        changed = "quiet period changed from 1m" in worker.log()
        seconds = metric(worker, "streams_app_quiet_period_seconds")
    values = {dict(record.headers)["fold-id"]: json.loads(record.value or b"") for record in records}.values()
    numbers = defaultdict(list)
    for value in sorted(values, key=lambda value: value["fold"]["first_event_ms"]):
        numbers[value["account_id"]].append(sorted(int(name[1:]) for name in value["metrics"]))

    assert {group for group, _, _ in sent} == numbers.keys()
    for parts in numbers.values():
        assert list(range(2 * EACH)) == [number for part in parts for number in part]
        assert 1 == len(parts[0]), "the default is shorter than the gaps"
    assert any(len(parts[-1]) > 1 for parts in numbers.values()), "the second worker continues with the longer quiet period"
    assert not changed
    assert seconds > 100
