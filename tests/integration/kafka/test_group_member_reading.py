"""How a group member reads: a resumed partition continues at once, even if other fetches are waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from streams_app.clock import SystemClock
from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.claim import Claim
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.ownership import Ownership, OwnershipConfig
from streams_app.delivery.processor import Processors
from streams_app.health.status import Status
from streams_app.kafka.group_member import BUSY_FETCH_MAX_WAIT_MS, FETCH_MAX_WAIT_MS, GroupMember
from streams_app.settings import Settings
from tests.conftest import KafkaServer, Names
from tests.helpers.delivery.ownership import Taker
from tests.helpers.kafka.topics import create_topics, produce
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import SESSION

pytestmark = [pytest.mark.timeout(200), pytest.mark.apache]  # the embedded broker does not report the end of the log with a fetch

LIMIT_SECONDS = 60
RECORDS = 8
RECORD_BYTES = 400_000
"""A fetch returns 1 MB of a partition: these are more than one fetch."""


class Halting(Taker):
    """Accepts one batch, and no other until the test lets it continue."""

    claimed: Claim | None = None
    is_halting = True

    async def claim(self, claim: Claim) -> int:
        self.claimed = claim
        return 0

    def deliver(self, batch: Batch) -> None:
        super().deliver(batch)
        self.in_flight = int(self.is_halting)

    def go_on(self) -> None:
        assert self.claimed is not None
        self.is_halting, self.in_flight = False, 0
        self.claimed.on_progress()


class HaltingProcessors(Processors):
    topics: Collection[str] = ()

    def __init__(self, *topics: str) -> None:
        self.topics = topics
        self.made: dict[str, Halting] = {}

    def of(self, tp: TP, committed: Collection[str]) -> dict[str, Halting]:
        made = self.made[tp.topic] = Halting()
        return {"ship": made}


async def test_resumed_partition_does_not_wait_for_a_fetch_of_idle_ones(kafka: KafkaServer, names: Names) -> None:
    busy, quiet = f"{names.app_id}.busy", f"{names.app_id}.quiet"
    await create_topics(kafka.bootstrap_servers, [busy, quiet], 1)
    await produce(kafka.bootstrap_servers, busy, [(b"k", b"x" * RECORD_BYTES)] * RECORDS)
    fold = {
        "name": "f",
        "source": f"{busy}.source",
        "output": f"{busy}.out",
        "group_key": "id",
        "changed": "m",
        "quiet_period": "1s",
    }
    server = {"bootstrap_servers": kafka.bootstrap_servers, "session_timeout": SESSION}
    settings = Settings.model_validate({"app_id": names.app_id, "kafka": server, "folds": [fold]})
    member, processors = GroupMember(settings, "ship", [busy, quiet]), HaltingProcessors(busy, quiet)
    config = OwnershipConfig(
        TrustedClock(SystemClock()), Status(), member.fail, lambda *_: None, session_ms=2_000, tick_seconds=0.2
    )  # fmt: skip
    stop = asyncio.Event()
    running = asyncio.create_task(member.run(Ownership(member, processors, config), stop))
    try:
        await wait_until(lambda: busy in processors.made and processors.made[busy].in_flight == 1, LIMIT_SECONDS, "it halts")
        assert member.client is not None
        halted_ms = member.client._fetcher._fetch_max_wait_ms
        processors.made[busy].go_on()
        await wait_until(lambda: processors.made[busy].taken[-1][1] == RECORDS, LIMIT_SECONDS, "all is read")
        at_its_end_ms = member.client._fetcher._fetch_max_wait_ms
    finally:
        stop.set()
        await running

    assert (BUSY_FETCH_MAX_WAIT_MS, FETCH_MAX_WAIT_MS) == (halted_ms, at_its_end_ms)
