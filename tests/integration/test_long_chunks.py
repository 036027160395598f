"""Chunks with more in them than one script should do: they are staged, or folded in parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from streams_app.delivery.partition_clock import ReaderView
from streams_app.folding.core import chunks as batch
from streams_app.folding.core.chunks import Chunk, FoldEvent, Scoring, chunks_of
from streams_app.folding.shard import shard as sharding
from streams_app.folding.shard.cutting import MOST_HELD, ChunkTooLongError
from streams_app.folding.shard.shard import Shard
from streams_app.folding.shard.staging import stage
from streams_app.folding.store import portions
from streams_app.folding.store.arguments import arguments_of
from streams_app.folding.store.portions import Portioned
from streams_app.folding.store.replies import RefusedError
from streams_app.folding.store.shard_store import ShardStore
from tests.conftest import Names
from tests.integration.test_scripts import BOUNDS, WALL
from tests.integration.test_scripts_edges import MANY, claimed_shard, fold_some


async def test_a_chunk_that_proves_too_long_is_folded_in_parts(
    redis_client: Redis, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, value in (
        (portions, "STAGED_RECORDS", 2), (portions, "STAGED_GROUPS", 2), (portions, "SINGLE_GROUPS", 2),
        (sharding, "MOST_HELD", 3), (batch, "HELD_RUNS", 2), (batch, "LEAST_RUNS", 1),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    shard = await claimed_shard(redis_client, names, "sessions")
    shard.bounds = replace(shard.bounds, max_changed=1)  # perhaps reached: only the script that folds counts names
    await fold_some(shard, [FoldEvent(at, 1_000, b"s%d" % at, {"u": 1}) for at in range(8)])
    quiet = shard.bounds.quiet_ms
    events = [FoldEvent(8 + at, 1_001 + 2 * quiet * (at // 8), b"s%d" % (at % 8), {"u": 1}) for at in range(16)]
    (chunk,) = shard.chunks(events, 23, ReaderView(None, None), 10**9)
    with pytest.raises(ChunkTooLongError) as raised:
        await shard.fold_chunk(chunk, lambda: events)
    parts = list(raised.value.parts)
    for part in parts:
        await shard.fold_chunk(part, lambda: events)

    assert len(parts) > 1
    assert [part.above for part in parts[1:]] == [part.to for part in parts[:-1]]
    assert (23, 23) == (parts[-1].to, shard.fence)
    assert 16 == sum(part.events for part in parts)
    assert [2] * 8 == [entry.events for entry in shard.pending]


async def test_runs_that_a_bound_falls_into_are_not_too_many_for_one_script(
    redis_client: Redis, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharding, "MOST_HELD", 3)
    monkeypatch.setattr(batch, "HELD_RUNS", 2)
    monkeypatch.setattr(batch, "LEAST_RUNS", 1)
    shard = await claimed_shard(redis_client, names)
    shard.bounds = replace(shard.bounds, max_events=2)
    events = [FoldEvent(at, 1_000, b"s%d" % (at // 2), {"u": 1}) for at in range(16)]
    (chunk,) = shard.chunks(events, 15, ReaderView(None, None), 10_000)
    with pytest.raises(ChunkTooLongError) as raised:
        await shard.fold_chunk(chunk, lambda: events)
    for part in raised.value.parts:
        await shard.fold_chunk(part, lambda: events)

    assert ([2] * 8, 15) == ([entry.events for entry in shard.pending], shard.fence)


async def steps_of(shard: Shard, events: list[FoldEvent], chunk: Chunk) -> list[int]:
    """Folds a chunk, in parts where it is too long; returns of how many events each was."""
    try:
        return [(await shard.fold_chunk(chunk, lambda: events)).events]
    except ChunkTooLongError as long:
        return [step for part in long.parts for step in await steps_of(shard, events, part)]


@pytest.mark.parametrize("gap_ms", [1, 5_000], ids=["one session", "many sessions"])
async def test_however_many_runs_a_group_has_no_script_takes_them_all(redis_client: Redis, names: Names, gap_ms: int) -> None:
    shard = await claimed_shard(redis_client, names, "sessions")
    shard.bounds = replace(shard.bounds, max_events=3)
    events = [FoldEvent(at, 1_000 + at * gap_ms, b"sa", {"u": 1}) for at in range(2_000)]
    events += [FoldEvent(2_000 + at, events[-1].timestamp_ms, b"sa", {"u": 1}) for at in range(3)]
    chunk = next(shard.chunks(events, 2_002, ReaderView(None, None), 10**9))
    steps = await steps_of(shard, events, chunk)

    assert 2_003 == sum(steps)
    assert max(steps) <= MOST_HELD
    assert 2_002 == shard.fence
    assert 2_003 == sum(entry.events for entry in shard.pending) + await open_events(shard)


async def open_events(shard: Shard) -> int:
    done = await shard.store.seal(shard.token, shard.fence, 10**9, BOUNDS, quiet=True, everything=True, limit=MANY, partitions=1)
    return sum(entry.events for entry in done.sealed)


async def test_groups_of_many_names_are_ended_by_several_scripts(
    redis_client: Redis, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    many, held = 40, {f"n{number}": 1 for number in range(400)}
    shard = await claimed_shard(redis_client, names, "sessions")
    await fold_some(shard, [FoldEvent(at, 1_000, b"s%d" % at, held) for at in range(many)])
    late = [FoldEvent(many + at, 1_001, b"s%d" % at, {"u": 1}) for at in range(many)]
    late.append(FoldEvent(2 * many, 1_002 + shard.bounds.quiet_ms, b"snew", {"u": 1}))
    (chunk,) = shard.chunks(late, 2 * many, ReaderView(None, None), 10_000)
    staged: list[int] = []
    original = ShardStore.stage

    async def counted(self: ShardStore, *args: Any, **kwargs: Any) -> Portioned | None:
        done = await original(self, *args, **kwargs)
        assert done is not None
        staged.append(len(done.joint))
        return done

    monkeypatch.setattr(ShardStore, "stage", counted)
    await shard.fold_chunk(chunk, lambda: late)

    assert many == sum(staged)
    assert max(staged) <= 2_500 // 400 + 1
    assert [(at, 401) for at in range(many)] == sorted((entry.first_offset, len(entry.names)) for entry in shard.pending)


async def test_groups_of_many_names_that_a_bound_may_close_are_folded_in_parts(redis_client: Redis, names: Names) -> None:
    many = 100
    shard = await claimed_shard(redis_client, names, "sessions")
    await fold_some(shard, [FoldEvent(at, 1_000, b"s%d" % at, {f"n{n}": 1 for n in range(500)}) for at in range(many)])
    shard.bounds = replace(shard.bounds, max_events=2)
    late = [FoldEvent(many + at, 1_001, b"s%d" % at, {"u": 1}) for at in range(many)]
    late.append(FoldEvent(2 * many, 1_002 + shard.bounds.quiet_ms, b"snew", {"u": 1}))
    (chunk,) = shard.chunks(late, 2 * many, ReaderView(None, None), 10_000)
    steps = await steps_of(shard, late, chunk)

    assert len(steps) > 1
    assert [(at, 2, 501) for at in range(many)] == sorted(
        (entry.first_offset, entry.events, len(entry.names)) for entry in shard.pending
    )


async def test_offsets_are_skipped_only_as_nothing_is_staged(redis_client: Redis, names: Names) -> None:
    shard = await claimed_shard(redis_client, names, "sessions")
    await fold_some(shard, [FoldEvent(0, 1_000, b"sa", {"u": 1})])
    late = [FoldEvent(1, 1_001, b"sa", {"u": 1}), FoldEvent(2, 1_002 + shard.bounds.quiet_ms, b"sb", {})]
    (chunk,) = chunks_of(late[:1], 1, Scoring(0, WALL, None, 0))
    arguments = arguments_of(
        replace(chunk, clock_ms=10**6), shard.bounds, gaps_close=True, keeps_values=True, partitions=1, epoch=shard.epoch
    )
    done = await stage(shard.store, (shard.token, 0, 1), arguments, shard.bounds, 1, always=True)
    assert 1 == len(done.joint)

    with pytest.raises(RefusedError, match="open-groups"):
        await shard.store.skip(shard.token, 0, 5)


async def test_groups_that_go_on_are_not_looked_at_one_by_one(redis_client: Redis, names: Names) -> None:
    shard = await claimed_shard(redis_client, names, "sessions")
    await fold_some(shard, [FoldEvent(at, 1_000, b"s%d" % at, {"u": 1}) for at in range(10)])
    late = [FoldEvent(10 + at, 1_001, b"s%d" % at, {"u": 1}) for at in range(10)]
    (chunk,) = shard.chunks(late, 19, ReaderView(None, None), 10_000)
    arguments = arguments_of(chunk, shard.bounds, gaps_close=True, keeps_values=True, partitions=1, epoch=shard.epoch)
    done = await shard.store.fold(
        shard.token, 9, 19, 1_001, 1_001, shard.bounds, gaps_close=True, partitions=1, arguments=arguments
    )

    assert (0, []) == (done.held, done.sealed)
