"""The regular check of a journal's state in Redis detects that Redis has lost writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import redis.asyncio

from streams_app.delivery.clocks import ReaderView, TrustedClock
from streams_app.delivery.scripts import FencedError
from streams_app.journal.agents.processor import JournalProcessor
from tests.conftest import Names
from tests.helpers.manual_clock import ManualClock
from tests.simulation.mutants import Mutant
from tests.simulation.mutants_journal import NUMBER_OF_CHANGES


async def check(client: redis.asyncio.Redis, meta: str, **stored: Any) -> None:
    """Check the state of an owner with the token a, the fence 9, and 3 changes of segments."""

    async def nothing_to_close() -> None: ...

    values: Any = stored
    await client.hset(meta, mapping=values)
    made: Any = object.__new__(JournalProcessor)
    made._meta, made._context = meta, SimpleNamespace(clock=TrustedClock(ManualClock(50)), redis=client)
    claim: Any = SimpleNamespace(token="a", reader_view=lambda: ReaderView(10, None))
    shard: Any = SimpleNamespace(fence=9, clock_ms=0, close_day=nothing_to_close, store=SimpleNamespace(changed=3))
    await made._check_state(claim, shard)


async def test_state_with_all_changes_is_accepted(redis_client: redis.asyncio.Redis, names: Names) -> None:
    await check(redis_client, f"{{{names.app_id}}}:meta", token="a", fence=9, change=3)


@pytest.mark.parametrize(
    ("stored", "cause"),
    [({"change": 2}, "fence"), ({"fence": 8}, "fence"), ({"token": "b"}, "token")],
    ids=["a change of segments", "an append", "a claim of another owner"],
)
async def test_state_without_a_change_is_rejected(
    redis_client: redis.asyncio.Redis, names: Names, stored: dict[str, Any], cause: str
) -> None:
    with pytest.raises(FencedError) as raised:
        await check(redis_client, f"{{{names.app_id}}}:meta", **({"token": "a", "fence": 9, "change": 3} | stored))

    assert cause == raised.value.cause


@pytest.mark.parametrize("mutant", NUMBER_OF_CHANGES, ids=lambda mutant: mutant.name)
async def test_broken_check_accepts_a_lost_change(redis_client: redis.asyncio.Redis, names: Names, mutant: Mutant) -> None:
    with mutant.applied():
        await check(redis_client, f"{{{names.app_id}}}:meta", token="a", fence=9, change=2)
