"""The lease of a replay on a real Redis: it lasts as long as its holder, and expires soon after it."""

from __future__ import annotations

import re
from itertools import pairwise

import redis.asyncio

from streams_app.clock import SystemClock
from streams_app.errors import TryAgainError
from streams_app.fold import Fold
from streams_app.operations.replay_lease import LEASE_SECONDS, ReplayLease, replay_lease
from streams_app.settings import RedisSettings, Settings
from tests.conftest import Names, RedisServer
from tests.helpers.waiting import wait_until

LIMIT_SECONDS = 30


def settings_of(names: Names, server: RedisServer) -> Settings:
    fold = Fold(name="one", source="s", group_key="id", changed="m", quiet_period="15m")
    return Settings(app_id=names.app_id, redis=RedisSettings(url=server.url), folds=(fold,))


async def test_killed_replay_ends_when_its_lease_expires(
    names: Names, redis_server: RedisServer, redis_client: redis.asyncio.Redis
) -> None:
    settings, address = settings_of(names, redis_server), f"{names.app_id}/one"
    key = f"{{{address}}}:v1:replay"
    killed = ReplayLease(settings, redis_client, key, LEASE_SECONDS)
    await killed.take({"by": "root@host", "pid": 7, "since_ms": 0})
    rejections: list[str] = []

    async def can_be_taken() -> bool:
        try:
            async with replay_lease(settings, address.encode(), SystemClock()):
                return True
        except TryAgainError as error:
            rejections.append(str(error))
            return False

    await can_be_taken()
    left_ms = await redis_client.pttl(key)
    await redis_client.pexpire(key, 100)  # instead of waiting for half a minute
    await wait_until(can_be_taken, LIMIT_SECONDS, "the lease has expired")

    assert 0 < left_ms <= LEASE_SECONDS * 1000
    assert re.search(r"begun 1970-01-01 00:00:00Z by root@host, pid 7: .* killed is over in [1-3]?\d s$", rejections[0])


async def test_replay_lease_is_renewed_while_it_runs_and_removed_at_its_end(
    names: Names, redis_server: RedisServer, redis_client: redis.asyncio.Redis
) -> None:
    address = f"{names.app_id}/one"
    key = f"{{{address}}}:v1:replay"
    async with replay_lease(settings_of(names, redis_server), address.encode(), SystemClock(), seconds=3.0):
        seen: list[int] = []

        async def was_renewed() -> bool:
            seen.append(await redis_client.pttl(key))
            return any(later > earlier for earlier, later in pairwise(seen))

        await wait_until(was_renewed, LIMIT_SECONDS, "its time to live has grown")
        exists = await redis_client.exists(key)

    assert (1, 0) == (exists, await redis_client.exists(key))
