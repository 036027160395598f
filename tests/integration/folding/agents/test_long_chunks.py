"""Chunks too large for one script: several scripts fold them, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from redis.asyncio import Redis

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.clocks import ReaderView, TrustedClock
from streams_app.fold import Fold
from streams_app.folding.agents.processor import FoldProcessor
from streams_app.folding.core import chunks as chunks_module
from streams_app.folding.core.chunks import MAX_EVENTS, MAX_NEAR_EVENTS, MAX_RUNS
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.shard.range_progress import SCRIPT_WORK
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.replies import FoldOutcome, FoldReply
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from tests.conftest import Names
from tests.helpers.folding.shards import claimed_shard, context_of, decoded_batches_of, fold_some

SECOND_MS = 1_000
"""The quiet period of these shards."""


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> list[FoldReply]:
    """Record the replies of folding scripts, with or without effect."""
    found: list[FoldReply] = []
    original = ShardStore.fold

    async def recorded(self: ShardStore, *args: object, **kwargs: object) -> FoldReply:
        found.append(await original(self, *args, **kwargs))  # type: ignore[arg-type]  # the arguments of the original call
        return found[-1]

    monkeypatch.setattr(ShardStore, "fold", recorded)
    return found


async def fold_range(shard: Shard, events: Sequence[FoldEvent], now_ms: int = 10**9) -> list[int]:
    """Fold events as a range; return the number of events in each chunk."""
    sizes = []
    for chunk in shard.chunks(events, events[-1].offset, ReaderView(None, None), now_ms):
        progress = shard.begin(chunk, lambda: events)
        while (await shard.fold_once(progress)).outcome is not FoldOutcome.DONE:
            pass
        sizes.append(chunk.events)
    return sizes


async def count_events(shard: Shard) -> int:
    """Count the events in the outbox and in open groups."""
    done = await shard.seal(10**9, folded_until_ms=None, everything=True)
    assert done is not None
    assert not done.more
    return sum(entry.events for entry in shard.outbox)


@pytest.mark.parametrize("backlog", ["merge", "sessions"])
async def test_script_work_stays_close_to_its_limit(
    redis_client: Redis, names: Names, replies: list[FoldReply], backlog: Any
) -> None:
    shard = await claimed_shard(redis_client, names, backlog)
    events = [FoldEvent(at, 1_000, b"s%d" % at, {"u": 1}) for at in range(4_000)]
    chunks = await fold_range(shard, events, now_ms=10_000)
    later = [FoldEvent(4_000 + at, 1_000, b"s%d" % at, {"u": 1}) for at in range(4_000)]
    await fold_range(shard, later, now_ms=10_000)

    assert [4_000] == chunks
    assert 8_000 == sum(reply.taken for reply in replies)
    assert max(reply.work for reply in replies) < SCRIPT_WORK + 100
    assert len(replies) > 8
    assert all(reply.cursor for reply in replies if reply.outcome is FoldOutcome.MORE)


@pytest.mark.parametrize("max_events", [0, 3])
@pytest.mark.parametrize("gap_ms", [1, 5_000], ids=["one session", "many sessions"])
async def test_group_of_any_number_of_events_and_sessions_is_split_among_scripts(
    redis_client: Redis, names: Names, gap_ms: int, max_events: int
) -> None:
    shard = await claimed_shard(redis_client, names, "sessions")
    shard.bounds = shard._packing.bounds = replace(shard.bounds, max_events=max_events, hold_ms=10**9)
    most = MAX_RUNS if gap_ms > 1 else MAX_NEAR_EVENTS if max_events else MAX_EVENTS
    events = [FoldEvent(at, 1_000 + at * gap_ms, b"sa", {"u": 1}) for at in range(most + 100)]
    chunks = await fold_range(shard, events)
    left = [entry.events for entry in shard.outbox]

    assert ([most, 100], most + 99) == (chunks, shard.fence)
    assert most + 100 == await count_events(shard)
    assert ({1} if gap_ms > 1 else {3} if max_events else set()) == set(left)


async def test_groups_of_many_names_are_ended_by_several_scripts(
    redis_client: Redis, names: Names, replies: list[FoldReply]
) -> None:
    many, values = 40, {f"n{number}": 1 for number in range(400)}
    shard = await claimed_shard(redis_client, names, "sessions")
    await fold_some(shard, [FoldEvent(at, 1_000, b"s%d" % at, values) for at in range(many)])
    replies.clear()
    late = [FoldEvent(many + at, 1_001, b"s%d" % at, {"u": 1}) for at in range(many)]
    late.append(FoldEvent(2 * many, 1_002 + SECOND_MS, b"snew", {"u": 1}))
    await fold_range(shard, late)
    sealed = [len(reply.sealed) for reply in replies]

    assert many == sum(sealed)
    assert 1 < len(sealed)
    assert [(at, 401) for at in range(many)] == sorted((entry.first_offset, len(entry.names)) for entry in shard.outbox)


async def test_groups_of_many_names_closed_by_a_bound_are_closed_by_several_scripts(
    redis_client: Redis, names: Names, replies: list[FoldReply]
) -> None:
    many = 100
    shard = await claimed_shard(redis_client, names, "sessions")
    await fold_some(shard, [FoldEvent(at, 1_000, b"s%d" % at, {f"n{n}": 1 for n in range(500)}) for at in range(many)])
    shard.bounds = shard._packing.bounds = replace(shard.bounds, max_events=2)
    replies.clear()
    late = [FoldEvent(many + at, 1_001, b"s%d" % at, {"u": 1}) for at in range(many)]
    late.append(FoldEvent(2 * many, 1_002 + SECOND_MS, b"snew", {"u": 1}))
    await fold_range(shard, late)

    assert 1 < len(replies)
    assert [(at, 2, 501) for at in range(many)] == sorted(
        (entry.first_offset, entry.events, len(entry.names)) for entry in shard.outbox
    )


async def test_continuing_groups_are_not_read_name_by_name(redis_client: Redis, names: Names) -> None:
    shard = await claimed_shard(redis_client, names, "sessions")
    await fold_some(shard, [FoldEvent(at, 1_000, b"s%d" % at, {"u": 1}) for at in range(10)])
    await redis_client.config_resetstat()
    await fold_some(shard, [FoldEvent(10 + at, 1_001, b"s%d" % at, {"u": 1}) for at in range(10)])
    counts = await redis_client.info("commandstats")

    assert "cmdstat_hgetall" not in counts
    assert 0 == len(shard.outbox)


async def test_group_near_its_bound_on_names_is_read_once_per_script(redis_client: Redis, names: Names) -> None:
    shard = await claimed_shard(redis_client, names, "merge")
    shard.bounds = shard._packing.bounds = replace(shard.bounds, max_changed=4)
    shard.stores_singly = True  # a packed group has its names with its numbers
    await fold_some(shard, [FoldEvent(0, 1_000, b"sa", {"u": 1, "v": 1, "w": 1})])
    await redis_client.config_resetstat()
    later = [FoldEvent(1 + at, 1_001, b"sa", {"u": 1, "v": 1}) for at in range(50)]
    await fold_range(shard, [*later, FoldEvent(51, 1_002, b"sa", {"x": 1, "y": 1})])
    counts = await redis_client.info("commandstats")

    assert [(51, {"u", "v", "w"})] == [(entry.events, set(entry.names)) for entry in shard.outbox]
    assert 2 == counts["cmdstat_hgetall"]["calls"], "by the script that has the run taken apart, and by the one that gets it"


@pytest.mark.parametrize(
    ("bounds", "closed", "runs"),
    [
        pytest.param({"hold_ms": 3_000}, [3_000], 2, id="max hold"),
        pytest.param({"max_changed": 4}, [2_002], 3, id="max changed"),
        pytest.param({"max_changed": 3}, [1_001, 3_003], 5, id="max changed twice"),
        pytest.param({"max_events": 2_000}, [2_000, 2_000], 3, id="max events"),
    ],
)
async def test_long_run_with_a_bound_inside_is_sent_as_the_runs_between_its_closings(
    redis_client: Redis, names: Names, bounds: dict[str, Any], closed: list[int], runs: int
) -> None:
    shard = await claimed_shard(redis_client, names, "merge")
    shard.bounds = shard._packing.bounds = replace(shard.bounds, **bounds)
    await fold_some(shard, [FoldEvent(0, 1_000, b"sa", {"u": 1, "v": 1})])
    events = [FoldEvent(at, 1_000 + at, b"sa", {f"n{at // 1_001}": 1}) for at in range(1, 5_001)]
    with (
        patch.object(chunks_module, "MAX_NEAR_EVENTS", MAX_EVENTS),
        patch.object(shard.store, "fold", wraps=shard.store.fold) as fold,
    ):
        assert [5_000] == await fold_range(shard, events)
    sent = [call.args[4].values[1] for call in fold.call_args_list]

    assert closed == [entry.events for entry in shard.outbox]
    assert (2, runs) == (len(sent), len(sent[-1]))


async def test_chunk_split_in_detail_rereads_only_its_own_records(redis_client: Redis, names: Names) -> None:
    fold = Fold(name="f", source="t", group_key="a", changed="m", quiet_period=timedelta(minutes=1), max_events=3)
    shard = Shard(fold, TP("t", 0), ShardStore(FoldScripts(redis_client), shard_keys(names.app_id, "f", "t", 0)))
    await shard.claim(0, 1)
    clock = TrustedClock(SimpleNamespace(now_ms=lambda: 10**9, monotonic_ms=lambda: 1))
    processor = FoldProcessor(shard, decoded_batches_of(fold), context_of(redis_client, names, fold, clock))
    records = [SimpleNamespace(offset=at, timestamp=1, key=b"x", value=b'{"a":"x","m":"y"}', headers=()) for at in range(20)]
    batch = Batch(TP("t", 0), records, 0, 20, stable_offset=20, fetched_at_ms=10**9, seek_number=0)
    reader = processor._decoded_batches._readers["f"]
    with patch.object(chunks_module, "MAX_NEAR_EVENTS", 5), patch.object(reader, "events", wraps=reader.events) as events:
        await processor.fold_once(batch)
    read = [[record.offset for record in call.args[0]] for call in events.call_args_list]

    assert [20, *[5] * 4] == [len(offsets) for offsets in read]
    assert [*range(20)] == [offset for offsets in read[1:] for offset in offsets]
    assert 20 == await count_events(shard)
