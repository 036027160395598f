"""Time in a real worker: wrong clocks of workers and producers, pauses, and the times in each record."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers.folding.checker import event
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site, metrics_of
from tests.helpers.worker.workers import WorkerProcess

MINUTE_MS = 60_000


class SkewedWorker(WorkerProcess):
    """A worker whose wall clock is off by the value in its file."""

    def __init__(self, config: Path, directory: Path, skew_ms: int) -> None:
        self.skew_file = directory / f"skew-{skew_ms}"
        self.skew(skew_ms)
        super().__init__(config, directory, {"STREAMS_APP_TEST_SKEW_FILE": str(self.skew_file)})

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "tests.helpers.worker.skewed", "worker", "--config", str(config.resolve()), *arguments]

    def skew(self, skew_ms: int) -> None:
        """Set the offset of its clock."""
        self.skew_file.write_text(str(skew_ms))


@pytest.mark.long
async def test_worker_with_a_clock_ten_minutes_ahead_emits_nothing_and_has_no_lasting_effect(site: Site) -> None:
    await site.topics("events", "folded", "events.dead", partitions=1)
    config = site.config(site.fold("folded", "events", quiet_period="3s"))
    with SkewedWorker(config, site.folder, 10 * MINUTE_MS) as wrong:
        await wait_until(lambda: "claimed fold=" in wrong.log(), LIMIT_SECONDS, "the worker with the wrong clock folds")
        # Sent by a producer on the same host, whose records are ten minutes ahead as well.
        await site.send("events", [event("a", "x")], timestamp_ms=int(time.time() * 1000) + 10 * MINUTE_MS)
        await wait_until(lambda: 'folded_total{fold="folded"} 1.0' in metrics_of(wrong), LIMIT_SECONDS, "it has folded")
        await wait_until(lambda: "wall clock differs from Redis TIME" in wrong.log(), LIMIT_SECONDS, "it has noticed")
        status, body = await wrong.get("/health/ready")
        assert 'records_emitted_total{fold="folded"' not in metrics_of(wrong)
        wrong.kill()
    with site.worker(config):
        await site.send("events", [event("a", "y"), event("b", "y")])
        sent_ms = time.time() * 1000
        records = await site.records("folded", 3)

    assert (503, True) == (status, "wall clock and Redis TIME" in body)
    assert {b"a": 2, b"b": 1} == {record.key: json.loads(record.value)["fold"]["events"] for record in records}
    assert all(3_000 <= record.timestamp - sent_ms + 200 <= 20_000 for record in records)


@pytest.mark.long
async def test_clock_that_jumps_ahead_closes_no_group(site: Site) -> None:
    await site.topics("events", "folded", "events.dead", partitions=1)
    with SkewedWorker(site.config(site.fold("folded", "events", quiet_period="6s")), site.folder, 0) as worker:
        await worker.wait_ready()
        sent = 0
        for skew_ms, message in ((2 * MINUTE_MS, "differs from Redis"), (0, "agrees with Redis")):
            worker.skew(skew_ms)
            while message not in worker.log():
                await site.send("events", [event("a", f"n{sent}")])
                sent += 1
                await asyncio.sleep(0.2)  # far less than the quiet period: the group is never silent
        (record,) = await site.records("folded", sent)

    assert sent == json.loads(record.value)["fold"]["events"]


@pytest.mark.long
async def test_events_that_arrived_while_a_worker_was_suspended_count_as_activity(site: Site) -> None:
    await site.topics("events", "folded", "events.dead", partitions=1)
    # The session lasts longer than the worker is stopped.
    config = site.config(site.fold("folded", "events", quiet_period="4s"), session_timeout="8s")
    with site.worker(config) as worker:
        await worker.wait_ready()
        await site.send("events", [event("a", "n0")])
        await wait_until(lambda: 'folded_total{fold="folded"} 1.0' in metrics_of(worker), LIMIT_SECONDS, "it is folded")
        worker.stop_signal()
        for number in range(1, 14):
            await asyncio.sleep(0.4)  # together longer than the quiet period, and never silent for so long
            await site.send("events", [event("a", f"n{number}")])
        worker.continue_signal()
        (record,) = await site.records("folded", 14)

    assert 14 == json.loads(record.value)["fold"]["events"]


@pytest.mark.long
async def test_producers_with_wrong_clocks_get_whole_groups_in_time(site: Site) -> None:
    await site.topics("events", "merge", "sessions", "events.dead", partitions=1)
    folds = [site.fold(name, "events", quiet_period="2s", backlog=name) for name in ("merge", "sessions")]
    offsets_ms = {"right": 0, "behind": -10 * MINUTE_MS, "ahead": 10 * MINUTE_MS}
    with site.worker(site.config("".join(folds))) as worker:
        await worker.wait_ready()
        for _ in range(4):
            for group, off_ms in offsets_ms.items():
                await site.send("events", [event(group, "n")], timestamp_ms=int(time.time() * 1000) + off_ms)
            await asyncio.sleep(0.4)  # the groups receive events for longer than a tick
        ended_ms = time.time() * 1000
        found = {name: await site.records(name, 12) for name in ("merge", "sessions")}

    for records in found.values():
        assert dict.fromkeys((b"behind", b"right", b"ahead"), 4) == {
            record.key: json.loads(record.value)["fold"]["events"] for record in records
        }
        assert all(1_000 <= record.timestamp - ended_ms <= 10_000 for record in records)


async def test_record_is_never_early_and_never_later_than_max_hold(site: Site) -> None:
    await site.topics("events", "folded", "events.dead", partitions=1)
    with site.worker(site.config(site.fold("folded", "events", quiet_period="1s", max_hold="2s"))) as worker:
        await worker.wait_ready()
        await site.send("events", [event("once", "n")])
        await wait_until(lambda: 'folded_total{fold="folded"} 1.0' in metrics_of(worker), LIMIT_SECONDS, "it folds")
        sent = 0
        while sent < 40 or 'records_emitted_total{fold="folded",reason="max_hold"}' not in metrics_of(worker):
            await site.send("events", [event("busy", f"n{sent}")])
            sent += 1
            await asyncio.sleep(0.1)  # less than the quiet period, so that the hold ends the group
        records = await site.records("folded", sent + 1)

    assert {b"once", b"busy"} == {record.key for record in records}
    for record in records:
        fold = json.loads(record.value)["fold"]
        due_ms = fold["first_event_ms"] + 2_000 if fold["reason"] == "max_hold" else fold["last_event_ms"] + 1_000
        # Includes the delay of a busy machine.
        assert due_ms <= record.timestamp <= due_ms + 20_000, fold
