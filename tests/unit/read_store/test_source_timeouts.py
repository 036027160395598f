"""A source of current values that takes too long: a function, or a query of SQLite."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from streams_app.errors import TryAgainError
from streams_app.read_store import python_source
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.core.source import ValueSource
from streams_app.read_store.registry import open_source
from streams_app.settings import ReadStoreSettings
from tests.helpers.waiting import wait_until
from tests.unit.read_store.python_source import LIKES, opened

pytestmark = pytest.mark.timeout(120)

LIMIT_SECONDS = 60


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait 0.1 s instead of a second until a cancelled call ends, for calls that do not."""
    monkeypatch.setattr(python_source, "GRACE_SECONDS", 0.1)


async def value_of(source: ValueSource) -> object:
    """Return the value of the likes, once the source answers within its timeout."""

    async def asked() -> list[object]:
        try:
            return [change.value for change in await source.current([LIKES])]
        except TryAgainError:
            return []

    (value,) = await wait_until(asked, LIMIT_SECONDS, "it is called again")
    return value


async def test_hanging_call_times_out_and_is_cancelled() -> None:
    ended = threading.Event()

    async def current(fold: str, pairs: Any) -> dict[Any, Any]:
        try:
            await asyncio.sleep(3600)  # runs until it is interrupted
        finally:
            ended.set()
        return {}

    async with opened(current, "100ms") as source:
        with pytest.raises(TryAgainError, match=r"did not return within 0\.1 s"):
            await source.current([LIKES])
        await wait_until(ended.is_set, 60, "the call is cancelled")


@pytest.mark.usefixtures("short_grace")
async def test_blocking_call_does_not_delay_others() -> None:
    release = threading.Event()
    blocked = [True]

    def current(fold: str, pairs: Any) -> dict[Any, Any]:
        if blocked and blocked.pop():
            release.wait(60)
        return {("a", "likes"): 1}

    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.01)
            beats += 1

    beating = asyncio.create_task(beat())
    async with opened(current, "200ms") as source:
        with pytest.raises(TryAgainError, match="did not return"):
            await source.current([LIKES])
        assert beats
        assert 1 == await value_of(source)
        release.set()
    beating.cancel()


@pytest.mark.usefixtures("short_grace")
async def test_number_of_abandoned_calls_is_bounded() -> None:
    release = threading.Event()
    async with opened(lambda fold, pairs: release.wait(60) and {}, "100ms") as source:
        for _ in range(4):
            with pytest.raises(TryAgainError, match="did not return"):
                await source.current([LIKES])
        with pytest.raises(TryAgainError, match="4 calls have never returned"):
            await source.current([LIKES])
        release.set()

        assert await value_of(source) is None


async def test_cancelled_caller_returns_at_once() -> None:
    async def current(fold: str, pairs: Any) -> dict[Any, Any]:
        await asyncio.sleep(3600)  # runs until it is interrupted
        return {}

    async with opened(current, "60s") as source:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(source.current([LIKES]), 0.2)


async def test_slow_sqlite_query_times_out_and_the_next_one_runs(tmp_path: Path) -> None:
    (tmp_path / "write.db").touch()
    forever = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, i, COUNT(*) FROM n"
    sql = f"SELECT 'a', 'likes', 1 WHERE :groups = :groups UNION ALL SELECT * FROM ({forever}) WHERE :names = '[\"slow\"]'"
    given = {"name": "dashboard", "url": "sqlite:///x.db", "folds": ["f"], "timeout": "200ms", "sql": sql}
    source = open_source(ReadStoreSettings.model_validate({**given, "source_url": f"sqlite:///{tmp_path}/write.db"}))
    began = time.monotonic()
    with pytest.raises(TryAgainError, match=r"read_stores\.dashboard\.sql did not return within 0\.2 s"):
        await source.current([CellChange(Cell("f", "a", "slow"), 1)])

    assert time.monotonic() - began < 30  # it would never end
    assert 1 == await value_of(source)
    await source.close()
