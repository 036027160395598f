"""The clock by which subscribers remember ids: that of Redis, if the worker's own is wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import AsyncMock, MagicMock, patch

import pytest

from streams_app import Catalogue, Event, Received, subscriber
from streams_app.clock import SystemClock
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.skew import SkewWatch
from streams_app.errors import StreamsAppError
from streams_app.health.status import Status
from streams_app.local import LocalEvents
from streams_app.local.scripts import MemoryScripts
from streams_app.settings import Settings
from streams_app.subscribers.state.keys import HOUR_MS
from streams_app.worker import components, runtime
from streams_app.worker.components import Components
from streams_app.worker.selection import everything
from tests.helpers.waiting import wait_until

LIMIT_SECONDS = 60
CLOCK_QUERIES = 5
"""How often a worker queries the clock of Redis in a test: more often than Redis is unavailable."""
SOON_SECONDS = 5
"""How long a test waits for an end that a broken variant never reaches."""


@dataclass(frozen=True)
class Paid:
    """An order was paid."""

    order: str


PAID = Event("order.paid", Paid, keyed_by="order", description="An order was paid.")


class FastClock(SystemClock):
    """The clock of a machine that is two hours ahead."""

    def now_ms(self) -> int:
        return super().now_ms() + 2 * HOUR_MS


class RedisTime:
    """Redis ``TIME``; unavailable at first."""

    is_away = True

    async def time(self) -> tuple[int, int]:
        if self.is_away:
            raise ConnectionError("Redis is away")
        return SystemClock().now_ms() // 1000, 0


async def test_worker_that_cannot_compare_its_clock_reports_it_once_per_outage(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    asked = RedisTime()
    skew = SkewWatch(TrustedClock(SystemClock()), Status(), asked.time)
    for asked.is_away in (True, True, False, True):
        await skew.try_once()

    away = "cannot compare clocks with Redis error=ConnectionError('Redis is away')"
    assert [away, "clocks are compared with Redis again", away] == caplog.messages


async def test_unanswered_clock_comparison_does_not_delay_the_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "SKEW_EVERY_SECONDS", 0)
    asked, stop, never = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def ask() -> tuple[int, int]:
        asked.set()
        await never.wait()
        return 0, 0

    skew = SkewWatch(TrustedClock(FastClock()), Status(), ask)
    comparing = asyncio.create_task(components.watch_redis(skew, AsyncMock(), stop))
    await asyncio.wait_for(asked.wait(), LIMIT_SECONDS)
    stop.set()

    assert (await asyncio.wait({comparing}, timeout=SOON_SECONDS))[0] == {comparing}


async def test_redis_unavailable_at_startup_is_compared_once_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "SKEW_EVERY_SECONDS", 0)
    stop, redis, queries = asyncio.Event(), RedisTime(), 0
    answers = iter([ConnectionError("Redis is away"), ConnectionError("Redis is away"), None])

    async def warn() -> None:
        if (error := next(answers)) is not None:
            raise error

    async def ask() -> tuple[int, int]:
        nonlocal queries
        queries += 1
        if queries == CLOCK_QUERIES:
            stop.set()
        return await redis.time()

    await components.watch_redis(SkewWatch(TrustedClock(SystemClock()), Status(), ask), warn, stop)

    assert "all are asked for" == next(answers, "all are asked for")


async def test_ids_are_stored_by_the_hours_of_redis_once_the_clock_was_compared() -> None:
    redis, trusted, done = RedisTime(), TrustedClock(FastClock()), []
    skew = SkewWatch(trusted, Status(), redis.time)
    hours: list[int] = []

    class Scripts(MemoryScripts):
        """Scripts that record their keys of ids."""

        def _begin(self, keys: Sequence[str], arg: Mapping[str, Any]) -> list[bytes]:
            hours.append(max(int(key.rpartition(":")[2]) for key in keys if ":ids:" in key))
            return super()._begin(keys, arg)

    @subscriber(PAID, idempotent="unknown", description="Ships it.", start="earliest")
    def ship(event: Received[Paid]) -> None:
        done.append(event.data.order)

    with patch("streams_app.local.events.MemoryScripts", Scripts):
        async with LocalEvents(Catalogue([PAID], [ship]), clock=trusted) as events:
            redis.is_away = False
            await skew.try_once()
            await events.publish(PAID, Paid("o1"))
            await wait_until(lambda: bool(done), LIMIT_SECONDS, "it was called")

    assert max(hours) <= SystemClock().now_ms() // HOUR_MS


NO_KAFKA = patch("streams_app.worker.components.require_kafka", AsyncMock())


class NothingToRunError(StreamsAppError):
    """Raised where subscribers would be created."""


class Clocks(list[object]):
    """The clocks that subscribers are given."""

    def __call__(self, settings: Settings, redis: object, producer: object, clock: object, *others: object) -> None:
        self.append(clock)
        raise NothingToRunError


@pytest.fixture
def shop() -> Settings:
    fold = {"name": "account-metrics", "source": "s", "group_key": "id", "changed": "m", "quiet_period": "15m", "keep": "last"}
    more = {"redis": {"url": "redis://127.0.0.1:1/0"}, "events": {"catalogue": "tests.helpers.events.shop:catalogue"}}
    return Settings.model_validate({"app_id": "social", "folds": [fold]} | more)


def test_separate_subscribers_get_a_compared_clock(shop: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "exit_after", MagicMock())  # its timer would end this process
    given = Clocks()
    with NO_KAFKA, patch("streams_app.worker.components.Subscribers", given), pytest.raises(NothingToRunError):
        runtime.serve(shop, ["ship"])

    assert [TrustedClock] == [type(clock) for clock in given]


async def test_subscribers_beside_folds_get_the_compared_clock(shop: Settings) -> None:
    given, redis = Clocks(), RedisTime()
    redis.is_away = False
    skew = SkewWatch(TrustedClock(FastClock()), Status(), redis.time)
    rest: Any = dict.fromkeys(["producer", "metrics", "http", "watchdog", "on_fatal"], MagicMock())
    running = Components(
        shop, everything(shop), FastClock(), status=Status(), skew=skew, redis=AsyncMock(), is_folding=True, **rest
    )  # fmt: skip
    no_servers = patch("streams_app.worker.components.warn_of_servers", AsyncMock())
    with NO_KAFKA, no_servers, patch("streams_app.worker.components.Subscribers", given), pytest.raises(NothingToRunError):
        await running.start()

    assert [skew.clock] == given
