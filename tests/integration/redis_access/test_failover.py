"""Redis fails over while connections stay open: the old primary becomes a replica, and the name leads to the new one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import redis

from streams_app.embedded import Valkey
from streams_app.embedded.ports import free_port
from tests.chaos.proxy import Proxy
from tests.conftest import REDIS_CHOICE
from tests.helpers.live.hubs import running_hub
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site, reasons, unhelpful_lines, up
from tests.helpers.worker.whole_app import GUARANTEES, PAGE, TAB, WholeApp
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.redis7 import Redis7

pytestmark = pytest.mark.timeout(240)


@dataclass
class Pair:
    """Two servers, one the replica of the other, and the name by which clients reach the primary.

    Attributes:
        name: Leads new connections to the current primary; open connections stay with their server, as with DNS.
    """

    first: redis.Redis
    second: redis.Redis
    name: Proxy

    @property
    def url(self) -> str:
        """Return the value of `redis.url`."""
        return f"redis://127.0.0.1:{self.name.port}/0"

    def demote_first(self) -> None:
        """Make the second the primary, and the first its replica; no connection is closed."""
        replicate(self.second, None)
        replicate(self.first, self.second)

    def fail_over(self) -> None:
        """Exchange the roles as in a planned failover, without moving the name."""
        self.first.execute_command("FAILOVER")  # type: ignore[no-untyped-call]  # redis-py gives it no types

    def lead_to_second(self) -> None:
        """Let the name lead to the new primary."""
        self.name.target_port = port_of(self.second)


def port_of(client: redis.Redis) -> int:
    return int(client.connection_pool.connection_kwargs["port"])


def replicate(client: redis.Redis, primary: redis.Redis | None) -> None:
    words = ("NO", "ONE") if primary is None else ("127.0.0.1", str(port_of(primary)))
    client.execute_command("REPLICAOF", *words)  # type: ignore[no-untyped-call]  # redis-py gives it no types


def is_in_sync(replica: redis.Redis) -> bool:
    return bool(replica.info("replication").get("master_link_status") == "up")


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    kind = Redis7 if REDIS_CHOICE == "redis" else Valkey
    servers = [kind.start(), kind.start()]
    first, second = (redis.Redis(port=server.port) for server in servers)
    name = Proxy(free_port(), servers[0].port)
    await name.start()
    try:
        replicate(second, first)
        await wait_until(lambda: is_in_sync(second), LIMIT_SECONDS, "the replica has copied the primary")
        yield Pair(first, second, name)
    finally:
        await name.stop()
        for client, server in zip((first, second), servers, strict=True):
            client.close()
            server.stop()


@pytest.fixture
async def app(site: Site, pair: Pair) -> WholeApp:
    made = WholeApp(site, pair.url)
    await made.prepare()
    return made


async def until_read_only(worker: WorkerProcess) -> None:
    """Return when the worker is not ready because Redis is read-only, and reports no wrong reason about Redis."""
    await wait_until(lambda: up(worker)["redis"] == 0, LIMIT_SECONDS, "the worker counts Redis as unavailable")

    async def found() -> list[str]:
        return [reason for reason in await reasons(worker) if "Redis" in reason]

    because = await wait_until(found, LIMIT_SECONDS, "the worker names Redis")
    assert all("read-only" in reason and "answer" not in reason for reason in because or ()), because


@pytest.mark.parametrize(
    "order",
    ["demoted first", pytest.param("name first", marks=pytest.mark.long), pytest.param("failover", marks=pytest.mark.long)],
)
async def test_application_continues_after_a_failover_that_keeps_connections_open(app: WholeApp, pair: Pair, order: str) -> None:
    async with running_hub(app.settings.app_id, pair.url, app.settings.live) as hub:
        page = await hub.events(f"/live/{PAGE}/events?view=seen&view=here&tab={TAB}")
        with app.worker() as worker:
            await worker.wait_ready()
            await app.send(20)
            await app.until_all_arrived()
            if order == "name first":
                pair.lead_to_second()
            if order == "failover":
                pair.fail_over()
                await wait_until(lambda: pair.first.role()[0] == b"slave", LIMIT_SECONDS, "the first is a replica")
            else:
                pair.demote_first()
            await app.send(20)
            if order == "demoted first":
                await until_read_only(worker)
            pair.lead_to_second()
            await app.until_all_arrived()
            await worker.wait_ready()
            await page.until("seen", count=app.sent, state="ok")
            await page.until("here", count=1, state="ok")
            is_up = up(worker)["redis"]
            code = await worker.terminate()
            log = worker.log()

    assert (1, 0) == (is_up, code)
    assert {1} == set(app.calls()[GUARANTEES[-1]].values())
    assert [] == unhelpful_lines(log)
