"""A quiet period that sets itself on a real Redis: owners that follow one another within a range, and what they have learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import ReaderView
from streams_app.fold import Fold
from streams_app.folding.core.auto_quiet import LearnedGaps, packed_gaps
from streams_app.folding.core.event import DetailedEvent
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.replies import FoldOutcome
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from tests.conftest import Names
from tests.helpers.folding.auto_quiet import AUTO_FOLD, AUTO_GOAL, regular_events
from tests.helpers.folding.scripts import BriefStore, emptied, meta_of, open_groups

NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000
DEFAULT_MS, AT_MOST_MS = AUTO_GOAL.default_ms, AUTO_GOAL.at_most_ms
VIEW = ReaderView(None, None)
FOLDS = {
    "names": AUTO_FOLD,
    "kept events": Fold(
        name="f", source="t", group_key="a", keep="events", quiet_period=AUTO_FOLD.quiet_period, max_events=3, max_hold="6h"
    ),
    "bounded": AUTO_FOLD.model_copy(update={"max_events": 3}),
}


def new_shard(redis: Redis, names: Names, fold: Fold = AUTO_FOLD, *, is_brief: bool = False) -> Shard:
    """Return a shard that is not claimed; with ``is_brief``, a script folds only one group."""
    store = ShardStore(FoldScripts(redis), shard_keys(names.app_id, "f", "t", 0))
    return Shard(fold, TP("t", 0), BriefStore(store, 1) if is_brief else store)


def learned_with(quiet_ms: int) -> bytes:
    return packed_gaps(LearnedGaps(AUTO_GOAL.candidates, quiet_ms, [0.0] * (len(AUTO_GOAL.candidates) + 1)))


async def fold_all(shard: Shard, events: Sequence[DetailedEvent], now_ms: int = NOW_MS) -> None:
    for chunk in shard.chunks(events, events[-1].offset, VIEW, now_ms):
        progress = shard.begin(chunk, lambda: events)
        while (await shard.fold_once(progress)).outcome is not FoldOutcome.DONE:
            pass


def events_of(groups: str, first: int = 0, **fields: Any) -> list[DetailedEvent]:
    return [DetailedEvent(at, NOW_MS + at, b"s" + group.encode(), {"u": None}, **fields) for at, group in enumerate(groups, first)]


async def quiet_of_open(shard: Shard) -> dict[bytes, int]:
    """Return the quiet period of each open group."""
    return {group: AT_MOST_MS - content.numbers.shorter_ms for group, content in (await open_groups(shard.store)).items()}


async def test_next_owner_folds_the_rest_of_a_range_with_its_quiet_period(redis_client: Redis, names: Names) -> None:
    first, second = (new_shard(redis_client, names, is_brief=True) for _ in range(2))
    events = events_of("abc")
    await first.claim(0, 1)
    (chunk,) = first.chunks(events, 2, VIEW, NOW_MS + 10)
    begun = await first.fold_once(first.begin(chunk, lambda: events))
    await redis_client.hset(first.store.keys.meta, "learned", learned_with(20_000))
    await second.claim(0, 1)
    await fold_all(second, [*events, *events_of("de", 3)])

    assert FoldOutcome.MORE is begun.outcome
    assert dict.fromkeys((b"sa", b"sb", b"sc"), DEFAULT_MS) | dict.fromkeys((b"sd", b"se"), 20_000) == await quiet_of_open(second)
    assert {"quiet", "cap", "cursor"}.isdisjoint(await meta_of(second.store))


async def test_range_of_an_owner_with_a_fixed_quiet_period_is_continued(redis_client: Redis, names: Names) -> None:
    fixed = AUTO_FOLD.model_copy(update={"quiet_period": AUTO_FOLD.max_hold})
    first, second = new_shard(redis_client, names, fixed, is_brief=True), new_shard(redis_client, names)
    plain = [(event.offset, event.timestamp_ms, event.group, event.names) for event in events_of("abc")]
    await first.claim(0, 1)
    (chunk,) = first.chunks(plain, 2, VIEW, NOW_MS + 10)
    await first.fold_once(first.begin(chunk, lambda: plain))
    assert "quiet" not in await meta_of(first.store)
    await second.claim(0, 1)
    await fold_all(second, events_of("abc"))

    assert {b"sa": AT_MOST_MS, b"sb": DEFAULT_MS, b"sc": DEFAULT_MS} == await quiet_of_open(second)


@pytest.mark.parametrize("fold", FOLDS.values(), ids=FOLDS)
async def test_group_has_the_quiet_period_of_its_last_event_however_its_runs_are_split(
    redis_client: Redis, names: Names, fold: Fold
) -> None:
    shard = new_shard(redis_client, names, fold)
    json: dict[str, Any] = {"json": b"{}"} if fold.keeps_events else {}
    await shard.claim(0, 1)
    await fold_all(shard, events_of("aaaaab", **json))
    await redis_client.hset(shard.store.keys.meta, "learned", learned_with(20_000))
    await shard.claim(0, 1)
    await fold_all(shard, events_of("aaaaa", 6, **json))

    assert {b"sa": 20_000, b"sb": DEFAULT_MS} == await quiet_of_open(shard)


async def test_silence_closes_a_group_after_the_quiet_period_of_its_last_event(redis_client: Redis, names: Names) -> None:
    shard = new_shard(redis_client, names)
    await shard.claim(0, 1)
    await fold_all(shard, events_of("a"))
    early = await shard.seal(NOW_MS + DEFAULT_MS, folded_until_ms=NOW_MS + DEFAULT_MS)
    due = await shard.seal(NOW_MS + DEFAULT_MS + 1, folded_until_ms=NOW_MS + DEFAULT_MS + 1)

    assert early is not None
    assert due is not None
    assert ([], [("quiet", NOW_MS + DEFAULT_MS)]) == (early.sealed, [(one.reason, one.due_ms) for one in due.sealed])


async def folded_for_some_time(redis: Redis, names: Names) -> Shard:
    """Return the shard of an owner that has folded a range for each minute of half an hour."""
    shard = new_shard(redis, names)
    await shard.claim(0, 1)
    for minute in range(30):
        begin_ms = NOW_MS + minute * MINUTE_MS
        events = regular_events(begin_ms, begin_ms + MINUTE_MS)
        events = [event._replace(offset=shard.fence + 1 + at) for at, event in enumerate(events)]
        await fold_all(shard, events, begin_ms + MINUTE_MS)
    return shard


async def test_quiet_period_changes_within_old_events_that_are_read_at_once(redis_client: Redis, names: Names) -> None:
    at_once, by_minute = new_shard(redis_client, names), await folded_for_some_time(redis_client, names)
    until_ms = NOW_MS + 30 * MINUTE_MS
    await emptied(by_minute.store)
    await at_once.claim(0, 1)
    await fold_all(at_once, regular_events(NOW_MS, until_ms), until_ms)
    assert at_once.quiet_period is not None
    assert by_minute.quiet_period is not None
    shown = set((await quiet_of_open(at_once)).values())

    assert DEFAULT_MS < at_once.quiet_period.quiet_ms == by_minute.quiet_period.quiet_ms
    assert {at_once.quiet_period.quiet_ms} == shown
    assert str(at_once.fence) == (await meta_of(at_once.store))["fence"]


async def test_next_owner_continues_with_what_was_learned_and_a_wiped_redis_begins_at_the_default(
    redis_client: Redis, names: Names
) -> None:
    first, second = await folded_for_some_time(redis_client, names), new_shard(redis_client, names)
    await second.claim(0, 1)
    assert first.quiet_period is not None
    assert second.quiet_period is not None
    learned = (first.quiet_period.quiet_ms, second.quiet_period.quiet_ms)
    size = await redis_client.hstrlen(second.store.keys.meta, "learned")
    await emptied(second.store)
    await second.claim(0, 1)

    assert DEFAULT_MS < learned[0] == learned[1]
    assert 1_000 < size < 16_000
    assert DEFAULT_MS == second.quiet_period.quiet_ms


async def test_state_without_its_fence_begins_at_the_default(redis_client: Redis, names: Names) -> None:
    shard = await folded_for_some_time(redis_client, names)
    await redis_client.hdel(shard.store.keys.meta, "fence")
    await shard.claim(0, 1)

    assert shard.quiet_period is not None
    assert DEFAULT_MS == shard.quiet_period.quiet_ms
    assert "learned" not in await meta_of(shard.store)


async def test_claim_ignores_a_learned_value_that_is_not_valid(
    redis_client: Redis, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    shard = new_shard(redis_client, names)
    await shard.claim(0, 1)
    await redis_client.hset(shard.store.keys.meta, "learned", b"\xff of another kind")
    await shard.claim(0, 1)
    await fold_all(shard, events_of("a"))

    assert "what was learned of it is not valid" in caplog.text
    assert {b"sa": DEFAULT_MS} == await quiet_of_open(shard)
