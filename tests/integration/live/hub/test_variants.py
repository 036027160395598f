"""Broken variants of live views that random schedules find seldom or never: the test of the rule fails with each."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from streams_app.live.core.state import ShardHead
from streams_app.settings import LiveView
from tests.conftest import Names, RedisServer
from tests.helpers.live.hubs import RunningHub, running_hub
from tests.integration.live.hub import test_access as access
from tests.integration.live.hub import test_polling as of_polling
from tests.simulation.mutants import Mutant
from tests.simulation.mutants_live import SHOWN_BY_TESTS
from tests.unit.delivery import test_acknowledged_until as of_clock
from tests.unit.live.core import test_operations as of_operations
from tests.unit.live.core import test_state as of_state

MISSING, NEWEST_CLOCK, HIDDEN, CONNECT_ONLY, FORGOTTEN, FAILED_POLL, STAYS, ONE_NUMBER, UNSEEN_EXPIRY = SHOWN_BY_TESTS
LATE_MS = of_state.NOW_MS - 10_001


@pytest.mark.parametrize(
    ("mutant", "heads", "expected"),
    [
        (MISSING, [of_state.head(), None], ("reading", None)),
        (MISSING, [of_state.head(), of_state.head(is_reading=True)], ("reading", None)),
        (NEWEST_CLOCK, [of_state.head(), of_state.head(LATE_MS)], ("behind", LATE_MS)),
    ],
)
def test_state_of_the_best_shard_instead_of_the_worst_is_detected(
    mutant: Mutant, heads: list[ShardHead | None], expected: tuple[str, int | None]
) -> None:
    with mutant.applied(), pytest.raises(AssertionError):
        of_state.test_state_is_that_of_the_worst_shard(heads, expected)


def test_ignored_open_transaction_is_detected() -> None:
    with HIDDEN.applied(), pytest.raises(AssertionError):
        of_clock.test_acknowledged_time_stops_at_the_start_of_an_open_transaction()


def test_forgotten_removal_before_a_put_is_detected() -> None:
    with FORGOTTEN.applied(), pytest.raises(AssertionError):
        of_operations.test_removed_item_that_returns_is_still_removed_first(5)


def test_stale_put_before_a_removal_is_detected() -> None:
    with STAYS.applied(), pytest.raises(AssertionError):
        of_operations.test_item_put_before_its_removal_is_dropped()


async def test_reused_state_version_is_detected(redis_client: redis.asyncio.Redis, names: Names) -> None:
    with ONE_NUMBER.applied(), pytest.raises(AssertionError):
        await of_polling.test_each_state_of_one_owner_is_polled(redis_client, names)


async def test_expiry_without_a_new_version_is_detected(redis_client: redis.asyncio.Redis, names: Names) -> None:
    with UNSEEN_EXPIRY.applied(), pytest.raises(AssertionError):
        await of_polling.test_expiry_of_some_items_is_polled(redis_client, names)


async def test_failed_poll_counted_as_success_is_detected(redis_client: redis.asyncio.Redis, names: Names) -> None:
    with FAILED_POLL.applied(), pytest.raises(AssertionError):
        await of_polling.test_changes_missed_by_a_failed_poll_are_requested_once_more(redis_client, names)


async def test_token_checked_only_at_connect_is_detected(
    redis_server: RedisServer, redis_client: redis.asyncio.Redis, names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*views: LiveView, **options: Any) -> AbstractAsyncContextManager[RunningHub]:
        return running_hub(names.app_id, redis_server.url, views, **options)

    monkeypatch.setattr(access, "LIMIT_SECONDS", 5)

    with CONNECT_ONLY.applied():
        with pytest.raises(AssertionError, match="not within 5 s: the stream ends"):
            await access.test_expired_token_ends_the_stream_with_bye(start, redis_client, names, tmp_path)
        with pytest.raises(AssertionError, match="not within 5 s: the stream of the withdrawn secret ends"):
            await access.test_secrets_rotate_while_the_hub_runs_and_a_withdrawn_one_ends_its_streams(start, tmp_path)
