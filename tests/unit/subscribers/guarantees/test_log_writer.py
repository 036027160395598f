"""The task that writes a log: which writes it repeats, what it logs and reports, and when it pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from redis.exceptions import OutOfMemoryError

from streams_app.clock import SystemClock
from streams_app.delivery.scripts import FencedError
from streams_app.local.scripts import MemoryScripts
from streams_app.subscribers.guarantees.log_writer import LogWriter
from streams_app.subscribers.state.keys import SubscriberKeys
from streams_app.subscribers.state.store import SubscriberStore
from tests.helpers.virtual_loop import in_no_time


async def write_all(
    outcomes: list[Exception | None], reports: list[str], pause: Callable[[], Awaitable[None]] | None = None
) -> list[str | None]:
    """Schedule one write, let its attempts have the given outcomes, and return what each attempt found in ``sample_wait``."""
    waits: list[str | None] = []

    async def write_once() -> None:
        waits.append(writer.sample_wait())
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome

    store = SubscriberStore(MemoryScripts(SystemClock().now_ms), SubscriberKeys("shop", "ship", "orders", 0), "t", remember_ms=0)
    writer = LogWriter(store, write_once, on_failure=reports.append, on_recovery=lambda: reports.append("recovered"), pause=pause)
    writer.changed.set()
    writing = asyncio.create_task(writer.forever())
    await asyncio.wait([writing], timeout=60.0)
    if not writing.done():
        writing.cancel()
    elif (error := writing.exception()) is not None:
        raise error
    return waits


def test_failed_write_is_repeated_until_it_succeeds_and_reported_once() -> None:
    reports: list[str] = []
    waits = in_no_time(write_all([OutOfMemoryError("full"), ConnectionError("away"), TimeoutError(), None], reports))

    assert [None, "redis-memory", "redis", "redis"] == waits
    assert ["OutOfMemoryError('full')", "recovered"] == reports


def test_rejected_write_of_another_owner_ends_the_task() -> None:
    with pytest.raises(FencedError):
        in_no_time(write_all([FencedError("end", "token")], []))


@pytest.mark.parametrize(("outcome", "pauses"), [(None, 1), (ConnectionError("away"), 0)])
def test_writer_pauses_only_after_a_successful_write(outcome: Exception | None, pauses: int) -> None:
    paused: list[int] = []

    async def pause() -> None:
        paused.append(len(paused))
        await asyncio.Event().wait()

    outcomes: list[Exception | None] = [outcome] * (1 if outcome is None else 1_000)
    in_no_time(write_all(outcomes, [], pause))

    assert pauses == len(paused)
