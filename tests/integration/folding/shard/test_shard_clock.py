"""The clock of a shard from owner to owner, on a real Redis, by the methods that its owner calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.claimer import Claimer
from streams_app.delivery.clocks import ReaderView, TrustedClock
from streams_app.delivery.commits import Commits
from streams_app.fold import Fold
from streams_app.folding.agents.processor import FoldProcessor
from streams_app.folding.agents.processors import FoldProcessors
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.replies import FoldOutcome
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from streams_app.operations.groups import collect, stored_shards
from streams_app.settings import Settings
from tests.conftest import Names
from tests.helpers.folding.shards import context_of, decoded_batches_of

NOW = 1_700_000_000_000
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000

Owner = Callable[[], Awaitable[Shard]]
Event = int | tuple[int, bytes]
"""The record timestamp, and the group if it is not the usual one."""


@pytest.fixture
async def owner(redis_client: Redis, names: Names) -> AsyncIterator[Owner]:
    """Claim the shard of a fold of sessions again, with a gap of a minute and a hold of half an hour."""
    fold = Fold(
        name="f", source="t", group_key="a", changed="m", backlog="sessions",
        quiet_period=timedelta(minutes=1), max_hold=timedelta(minutes=30),
    )  # fmt: skip

    async def claimed() -> Shard:
        shard = Shard(fold, TP("t", 0), ShardStore(FoldScripts(redis_client), shard_keys(names.app_id, "f", "t", 0)))
        await shard.claim(0, 1)
        return shard

    yield claimed


async def fold_live(shard: Shard, now_ms: int, *events: Event) -> None:
    """Fold events that were fetched as they arrived, in one range."""
    shard.observe_fetch(ReaderView(shard.fence + 1, now_ms), now_ms)
    await _fold(shard, ReaderView(shard.fence + 1 + len(events), now_ms), now_ms, events)


async def fold_backlog(shard: Shard, now_ms: int, *events: Event) -> None:
    """Fold events of a backlog, in one range."""
    await _fold(shard, ReaderView(10**9, now_ms), now_ms, events)


async def _fold(shard: Shard, view: ReaderView, now_ms: int, given: Iterable[Event]) -> None:
    pairs = [(event, b"sa") if isinstance(event, int) else event for event in given]
    events = [FoldEvent(shard.fence + 1 + place, stamp, group, {"x": 1}) for place, (stamp, group) in enumerate(pairs)]
    for chunk in shard.chunks(events, events[-1].offset, view, now_ms):
        progress = shard.begin(chunk, lambda: events)
        while (await shard.fold_once(progress)).outcome is not FoldOutcome.DONE:
            pass


async def seal_until(shard: Shard, now_ms: int) -> list[tuple[int, str]]:
    """Seal at a time up to which all arrived events are folded; return the number of events and the reason of each record."""
    found: Any = await shard.seal(now_ms, folded_until_ms=now_ms)
    return [(entry.events, entry.reason) for entry in found.sealed]


# Lateness of producers: how far the time of their records is behind their arrival


async def test_next_owner_knows_that_a_producer_is_an_hour_behind(owner: Owner) -> None:
    first = await owner()
    await fold_live(first, NOW, NOW - HOUR)
    await seal_until(first, NOW + SECOND)
    second = await owner()

    assert [] == await seal_until(second, NOW + MINUTE)
    await fold_live(second, NOW + MINUTE, NOW + MINUTE - HOUR)
    assert [] == await seal_until(second, NOW + 2 * MINUTE)
    assert [(2, "quiet")] == await seal_until(second, NOW + 2 * MINUTE + 1)


async def test_group_of_a_late_producer_has_the_same_hold_under_any_owner(owner: Owner) -> None:
    shard = await owner()
    for minute in range(30):
        await fold_live(shard, NOW + minute * MINUTE, NOW + minute * MINUTE - HOUR)
        assert [] == await seal_until(shard, NOW + minute * MINUTE)
        shard = await owner()

    assert [] == await seal_until(shard, NOW + 30 * MINUTE - 1)
    assert [(30, "max_hold")] == await seal_until(shard, NOW + 30 * MINUTE)


async def test_hold_of_a_late_producer_is_listed_as_it_will_be_applied(owner: Owner, redis_client: Redis, names: Names) -> None:
    shard = await owner()
    await fold_live(shard, NOW, NOW - HOUR)
    await seal_until(shard, NOW + SECOND)
    settings = Settings(app_id=names.app_id, folds=(shard.fold,))
    (row,) = await collect(redis_client, await stored_shards(redis_client, settings, "f"), 10, "oldest")

    assert (MINUTE - SECOND, 30 * MINUTE - SECOND) == (row.quiet_in_ms, row.hold_in_ms)


@pytest.mark.parametrize("away_ms", [10 * MINUTE, 2 * HOUR])
async def test_late_producer_is_still_late_after_a_backlog(owner: Owner, away_ms: int) -> None:
    first = await owner()
    await fold_live(first, NOW, NOW - HOUR)
    await seal_until(first, NOW + SECOND)
    second, back = await owner(), NOW + away_ms
    await fold_backlog(second, back, *range(NOW - HOUR + MINUTE, back - HOUR + 1, MINUTE))
    sealed = [(entry.events, entry.reason) for entry in second.outbox]

    assert [(30, "max_hold")] * (away_ms // (30 * MINUTE)) == sealed
    assert [] == await seal_until(second, back + MINUTE)
    assert [(away_ms // MINUTE % 30 + 1, "quiet")] == await seal_until(second, back + MINUTE + 1)


# Record time


A, B = b"sa", b"sb"
AT_THE_GAP = (
    (0, A), (MINUTE, B), (MINUTE, A),  # exactly a quiet period, with another event at that moment before
    (2 * MINUTE, A), (3 * MINUTE, A), (4 * MINUTE + 1, A),  # a millisecond more
    (4 * MINUTE, B), (5 * MINUTE, B), (5 * MINUTE + 1, B),  # older than the previous event: counts as if it were not
    (7 * MINUTE, A), (6 * MINUTE + 1, B), (8 * MINUTE, B), (2 * MINUTE, A), (9 * MINUTE, A),
)  # fmt: skip


def sessions_by_record_time(events: Iterable[tuple[int, bytes]]) -> list[tuple[bytes, int, int]]:
    """Return group, first and last offset of each session; time is the newest timestamp so far."""
    clock, found = 0, []
    open_sessions: dict[bytes, tuple[int, int, int]] = {}
    for offset, (stamp, group) in enumerate(events):
        clock = max(clock, stamp)
        score, first, last = open_sessions.get(group, (clock, offset, offset))
        if clock - score > MINUTE:
            found.append((group, first, last))
            first = offset
        open_sessions[group] = clock, first, offset
    return sorted(found + [(group, first, last) for group, (_, first, last) in open_sessions.items()])


@pytest.mark.parametrize("is_live", [False, True])
@pytest.mark.parametrize("in_turn", [False, True], ids=["one owner", "an owner a range"])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, len(AT_THE_GAP)])
async def test_sessions_are_independent_of_ranges_and_owners(owner: Owner, length: int, in_turn: bool, is_live: bool) -> None:
    events = [(NOW - HOUR + at_ms, group) for at_ms, group in AT_THE_GAP]
    shard = await owner()
    for begin in range(0, len(events), length):
        await (fold_live if is_live else fold_backlog)(shard, NOW, *events[begin : begin + length])
        shard = await owner() if in_turn else shard
    await shard.seal(NOW, folded_until_ms=None, everything=True)

    assert sessions_by_record_time(events) == sorted(
        (entry.member, entry.first_offset, entry.last_offset) for entry in shard.outbox
    )


# Clocks of hosts


async def test_worker_with_a_clock_ahead_leaves_a_correct_clock_to_the_next_owner(redis_client: Redis, names: Names) -> None:
    fold = Fold(name="f", source="t", group_key="a", changed="m", quiet_period=timedelta(minutes=1))
    keys = shard_keys(names.app_id, "f", "t", 0)
    shard, heir = (Shard(fold, TP("t", 0), ShardStore(FoldScripts(redis_client), keys)) for _ in range(2))
    await shard.claim(0, 1)
    ahead = SimpleNamespace(now_ms=lambda: NOW + 10 * MINUTE, monotonic_ms=lambda: 77_000)
    clock = TrustedClock(ahead)
    clock.compare(clock.read(), NOW)
    processor = FoldProcessor(shard, decoded_batches_of(fold), context_of(redis_client, names, fold, clock))
    # Without any delay, and by a producer on the same host.
    shard.clock.caught_up_at_ms = ahead.now_ms()
    record = SimpleNamespace(offset=0, timestamp=ahead.now_ms(), key=b"x", value=b'{"a":"x","m":"y"}', headers=())
    await processor.fold_once(Batch(TP("t", 0), [record], 0, 1, stable_offset=1, fetched_at_ms=ahead.now_ms(), seek_number=0))
    await heir.claim(0, 1)

    assert [] == await seal_until(heir, NOW + MINUTE)
    assert [(1, "quiet")] == await seal_until(heir, NOW + MINUTE + 1)


async def test_claim_with_a_clock_ahead_knows_when_it_was_at_the_end(redis_client: Redis, names: Names) -> None:
    fold = Fold(name="f", source="t", group_key="a", changed="m", quiet_period=timedelta(minutes=1))
    tp = TP("t", 0)
    clock_ahead = SimpleNamespace(now_ms=lambda: NOW + 10 * MINUTE, monotonic_ms=lambda: 77_000)
    clock = TrustedClock(clock_ahead)
    clock.compare(clock.read(), NOW)
    reader: Any = SimpleNamespace(
        generation=1, member_id="m", topic_id=_answer(""), incarnations=_answer({}), committed=_answer(None),
            log_range=_answer((0, 0)),
        commit=_answer(None), seek=_answer(0), partition_count=lambda _: 1, reader_view=lambda _: (ReaderView(None, None), None),
    )  # fmt: skip
    owner: Any = SimpleNamespace(fatal=None, on_progress=lambda _: None)
    claimer = Claimer(reader, FoldProcessors(context_of(redis_client, names, fold, clock)), clock, Commits(reader, clock))
    partition = await claimer.claim_once(tp, 1, owner, was_reset=False)
    processor = cast("FoldProcessor", partition.ranges.served["f"].processor)
    await processor.revoke(0)
    shard = processor.shard
    shard.is_claimed = True  # manual from here on
    clock_ahead.now_ms = lambda: NOW + SECOND  # corrected
    clock.compare(clock.read(), NOW + SECOND)
    # It arrived live, so its time is now, despite its producer's timestamp.
    record = SimpleNamespace(offset=0, timestamp=NOW - HOUR, key=b"x", value=b'{"a":"x","m":"y"}', headers=())
    await processor.fold_once(Batch(tp, [record], 0, 1, stable_offset=1, fetched_at_ms=NOW + SECOND, seek_number=0))

    assert [] == await seal_until(shard, NOW + SECOND + MINUTE)
    assert [(1, "quiet")] == await seal_until(shard, NOW + SECOND + MINUTE + 1)


def _answer(answer: Any) -> Any:
    async def reply(*_: Any) -> Any:
        return answer

    return reply
