"""The statistics that a worker reports for tuning agree with its topics."""

from __future__ import annotations

import asyncio
import random
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiokafka.structs import ConsumerRecord
from prometheus_client.parser import text_string_to_metric_families

from streams_app.embedded.ports import free_port
from streams_app.health.metric_table import GAP_BUCKETS
from tests.helpers.cli.commands import CANARY, run
from tests.helpers.folding.checker import Outcome
from tests.helpers.kafka.topics import read_topic
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site, metrics_of, send_at
from tests.helpers.worker.workers import WorkerProcess

EVENTS = 4_000
QUIET_MS = 60_000
HOUR_MS = 3_600_000


def two_hours(begin_ms: int) -> Iterator[tuple[str, int, int]]:
    """Yield events of groups with gaps from a second to an hour; times go back by up to three seconds."""
    chosen = random.Random(3)
    for number in range(EVENTS):
        at_ms = begin_ms + number * 2 * HOUR_MS // EVENTS + chosen.randrange(-3_000, 3_000)
        yield f"account_{int(150 * chosen.random() ** 3)}", at_ms, number


def statistics_of(worker: WorkerProcess) -> dict[tuple[str, str], Any]:
    """Return (metric, fold) → value; for a histogram its cumulative bucket counts."""
    found: dict[tuple[str, str], Any] = {}
    for family in text_string_to_metric_families(metrics_of(worker)):
        for sample in family.samples:
            name, fold = sample.name.removeprefix("streams_app_"), sample.labels.get("fold", "")
            if name.endswith("_bucket"):
                found.setdefault((name, fold), []).append(sample.value)
            elif "reason" not in sample.labels:
                found[name, fold] = sample.value
    return found


def gaps_of(log: Iterable[ConsumerRecord]) -> tuple[list[float], int]:
    """Return the gap histogram of a source and its number of groups; time is the newest timestamp of the partition so far."""
    clocks: dict[int, int] = defaultdict(int)
    last: dict[tuple[int, bytes], int] = {}
    gaps = []
    for record in sorted(log, key=lambda one: (one.partition, one.offset)):
        group = record.partition, record.key
        clocks[record.partition] = now = max(clocks[record.partition], record.timestamp)
        if group in last:
            gaps.append(now - last[group])
        last[group] = now
    counts = Counter(bisect_left(GAP_BUCKETS, gap / 1_000) for gap in gaps)
    return [float(sum(counts[below] for below in range(bucket + 1))) for bucket in range(len(GAP_BUCKETS) + 1)], len(last)


def split_in(outcome: Outcome) -> int:
    """Count records closed by silence whose group had its next event within the quiet period after that."""
    by_group: dict[bytes, list[dict[str, Any]]] = defaultdict(list)
    for fold_id, value in outcome.values.items():
        by_group[outcome.groups[fold_id]].append(value["fold"])
    pairs = [pair for folds in by_group.values() for pair in pairwise(sorted(folds, key=lambda fold: int(fold["first_event_ms"])))]
    return sum(after["first_event_ms"] - (before["last_event_ms"] + QUIET_MS) <= QUIET_MS for before, after in pairs)


def is_complete(found: dict[tuple[str, str], Any], folds: Iterable[str]) -> bool:
    """Return whether every event is in a record, and the next tick has run since."""
    return all(
        found["added_latency_seconds_count", fold] == EVENTS
        and found["folding_ratio", fold] == found["folding_ratio_last_hour", fold]
        for fold in folds
    )


async def test_worker_statistics_of_a_backlog_match_its_topics(site: Site) -> None:
    await site.topics("events", "sessions", "merged", "events.dead")
    await send_at(site, "events", two_hours(int(time.time() * 1000) - 5 * HOUR_MS))
    log = await read_topic(
        site.bootstrap, site.names.topic("events"), until=lambda found: len(found) >= EVENTS, timeout_seconds=LIMIT_SECONDS
    )
    folds = site.fold("sessions", "events", quiet_period="1m", backlog="sessions") + site.fold(
        "merged", "events", quiet_period="1m"
    )
    with site.worker(site.config(folds)) as worker:
        outcomes = {fold: await site.outcome(fold, EVENTS) for fold in ("sessions", "merged")}
        await wait_until(
            lambda: is_complete(statistics_of(worker), outcomes), LIMIT_SECONDS, "all events are counted, up to the gauges"
        )
        found = statistics_of(worker)
    gaps, groups = gaps_of(log)

    for fold, outcome in outcomes.items():
        assert gaps == found["gap_seconds_bucket", fold]
        assert groups == found["groups_begun_total", fold]
        assert round(1 - len(outcome.values) / EVENTS, 9) == round(found["folding_ratio", fold], 9)
        assert round(1 - len(outcome.values) / EVENTS, 9) == round(found["folding_ratio_last_hour", fold], 9)
        assert split_in(outcome) == found["split_folds_total", fold]
        assert EVENTS == found["added_latency_seconds_count", fold]
        assert (1, 0) == (found["sample_share", fold], found["sample_error_ratio", fold])
    assert groups + gaps[-1] - gaps[GAP_BUCKETS.index(60)] == len(outcomes["sessions"].values) > 2 * groups
    assert split_in(outcomes["sessions"]) > 100


async def test_group_reopened_soon_after_its_emission_is_a_split_fold(site: Site) -> None:
    await site.topics("events", "folded", "events.dead")
    with site.worker(site.config(site.fold("folded", "events", quiet_period="5s"))) as worker:
        await worker.wait_ready()
        begin_ms = int(time.time() * 1000)
        await send_at(site, "events", [("account_1", begin_ms, 1)])
        await site.outcome("folded", 1)
        # Soon by its own time, however long this machine has taken for the first record.
        await send_at(site, "events", [("account_1", min(int(time.time() * 1000), begin_ms + 9_000), 2)])

        def with_a_split_fold() -> dict[tuple[str, str], Any]:
            found = statistics_of(worker)
            return found if found["split_folds_total", "folded"] == 1 else {}

        found = await wait_until(with_a_split_fold, LIMIT_SECONDS, "the split fold is counted while the group is open")
        assert 1 == found["events_emitted_total", "folded"]


@pytest.mark.long
async def test_reopening_rate_of_groups_is_fetched_from_the_worker(site: Site, tmp_path: Path) -> None:
    await site.topics("events", "folded", "events.dead")
    token = tmp_path / "token"
    token.write_text(CANARY)
    config = site.config(site.fold("folded", "events", quiet_period="2s"))
    port = free_port()
    environment: dict[str, Any] = {"STREAMS_APP_HTTP_PORT": str(port), "STREAMS_APP_HTTP_TOKEN_FILE": str(token)}
    explain = "groups", "explain", "account_2", "--config", str(config)
    with WorkerProcess(config, site.folder, environment) as worker:
        await worker.wait_ready()
        await send_at(site, "events", [("account_1", int(time.time() * 1000), 1)])
        await site.outcome("folded", 1)
        with_token = await asyncio.to_thread(run, *explain, **environment)
        without = await asyncio.to_thread(run, *explain, STREAMS_APP_HTTP_PORT=str(port))
    gone = await asyncio.to_thread(run, *explain, **environment)

    with_a_split_fold = [" ".join(ran.out.split("reopens")[-1].split()) for ran in (with_token, without, gone)]
    at = f"http://127.0.0.1:{port}"
    assert (
        f"0.0% of this fold's records were followed by a new event of their group within 2.0 s (0 of 1, at {at})"
        == with_a_split_fold[0]
    )
    assert f"not known: {at} wants another token: http.token_file must be the worker's" == with_a_split_fold[1]
    assert f"not known: {at} does not answer (connection refused)" == with_a_split_fold[2]
    assert [0, 0, 0] == [ran.code for ran in (with_token, without, gone)]
