"""Shutdown of a worker process while functions run: those that end within the grace period succeed, and are committed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.helpers.cli.commands import run
from tests.helpers.folding.checker import event
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import GROUPS, LIMIT_SECONDS, Site
from tests.helpers.worker.workers import WorkerProcess
from tests.integration.subscribers.running.test_worker import declared

pytestmark = pytest.mark.timeout(200)

CATALOGUE = """
import asyncio, os
import msgspec
from streams_app import Catalogue, Event, Received, subscriber

class OrderPaid(msgspec.Struct, frozen=True):
    order_id: str

order_paid = Event("order.paid", OrderPaid, description="Paid.", keyed_by="order_id", topic=os.environ["PAID"])

def note(*words):
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(" ".join(words) + "\\n")

@subscriber(order_paid, idempotent="unknown", description="Hands the parcel over.", timeout="2m")
async def ship(event: Received[OrderPaid]) -> None:
    note("begun", event.data.order_id)
    if event.data.order_id == "slow":
        while not os.path.exists(os.environ["LEDGER"] + ".told"):
            await asyncio.sleep(0.02)
        await asyncio.sleep(SECONDS)
    note("ended", event.data.order_id)

catalogue = Catalogue(events=(order_paid,), subscribers=(ship,))
"""

WITH_FOLDS = pytest.param((), id="beside folds")
ALONE = pytest.param(("--only", "ship"), id="alone")
REVOKES = "Revoking previously assigned partitions"


class Parcels:
    """An application whose one function takes this long from the moment at which its worker is stopped."""

    def __init__(self, site: Site, seconds: float, grace: str) -> None:
        self.site = site
        self._config, self._environment, self.ledger = declared(site, CATALOGUE.replace("SECONDS", str(seconds)))
        self._config.write_text(self._config.read_text().replace("[worker]\n", f'[worker]\ngrace = "{grace}"\n'))

    async def made(self) -> None:
        made = await self.command("topics", "create")
        assert made[0] == 0, made

    async def command(self, *arguments: str) -> tuple[int, str]:
        ran = await asyncio.to_thread(lambda: run(*arguments, "--config", str(self._config), cwd=None, **self._environment))
        return ran.code, ran.out + ran.err

    def worker(self, *arguments: str) -> WorkerProcess:
        return WorkerProcess(self._config, self.site.folder, self._environment, arguments)

    async def begins(self, order: str) -> None:
        # All of one key, and so in one partition.
        await self.site.send("paid", [(b"o", b'{"order_id": "%s"}' % order.encode())])
        await wait_until(lambda: f"begun {order}" in self.seen(), LIMIT_SECONDS, f"{order} is called")

    def record_signal(self) -> None:
        """Record that the worker was signalled."""
        Path(f"{self.ledger}.told").touch()

    def seen(self) -> list[str]:
        return self.ledger.read_text().splitlines()


ALL_WELL = ["begun slow", "ended slow", "begun next", "ended next"]


@pytest.mark.long
@pytest.mark.parametrize("arguments", [WITH_FOLDS, ALONE])
async def test_function_that_takes_longer_than_20_s_succeeds_within_a_longer_grace(site: Site, arguments: tuple[str, ...]) -> None:
    parcels = Parcels(site, seconds=21, grace="40s")
    await parcels.made()
    with parcels.worker(*arguments) as worker:
        await parcels.begins("slow")
        parcels.record_signal()
        code = await worker.terminate(LIMIT_SECONDS)
    with parcels.worker(*arguments) as following:
        await parcels.begins("next")
        following_code = await following.terminate()

    assert (0, 0) == (code, following_code)
    assert parcels.seen() == ALL_WELL
    assert "interrupted" not in (await parcels.command("dead-letters", "list", "--subscriber", "ship"))[1]


@pytest.mark.long
async def test_partitions_of_folds_continue_in_another_worker_while_a_function_has_its_grace(site: Site) -> None:
    parcels = Parcels(site, seconds=0, grace="40s")
    await parcels.made()
    with parcels.worker() as worker:
        await worker.wait_ready()
        await parcels.begins("slow")
        with parcels.worker() as following:
            await following.wait_ready()
            worker._process.terminate()
            await wait_until(lambda: "signal received" in worker.log(), LIMIT_SECONDS, "the worker receives the signal")
            await site.send("events", [event(f"a{number}", "likes") for number in range(GROUPS)])
            outcome = await site.outcome("folded", GROUPS)
            exit_code = worker.exit_code
            parcels.record_signal()
            code = await worker.wait_exit(LIMIT_SECONDS)
            await following.terminate()

    assert (GROUPS, None, 0) == (outcome.events, exit_code, code)
    assert ["begun slow", "ended slow"] == parcels.seen()


@pytest.mark.parametrize("arguments", [pytest.param((), id="beside folds", marks=pytest.mark.long), ALONE])
async def test_function_has_its_grace_if_its_worker_is_stopped_during_a_rebalance(site: Site, arguments: tuple[str, ...]) -> None:
    parcels = Parcels(site, seconds=3, grace="15s")
    await parcels.made()
    topic = site.names.topic("paid")
    with parcels.worker(*arguments, "--log-level", "debug") as worker:
        await parcels.begins("slow")
        with parcels.worker(*arguments) as following:
            await wait_until(
                lambda: any(REVOKES in line and topic in line for line in worker.log().splitlines()),
                LIMIT_SECONDS,
                "the group of the subscriber is redistributed",
            )
            worker._process.terminate()
            parcels.record_signal()
            code = await worker.wait_exit(LIMIT_SECONDS)
            await parcels.begins("next")
            following_code = await following.terminate()

    assert (0, 0) == (code, following_code)
    assert parcels.seen() == ALL_WELL
    assert "interrupted" not in (await parcels.command("dead-letters", "list", "--subscriber", "ship"))[1]
