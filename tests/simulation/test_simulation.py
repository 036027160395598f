"""The protocol under random schedules of faults; a failure names the mix and the seed that repeat it exactly."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from unittest.mock import patch

import pytest
import redis
import redis.asyncio

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import ReaderView
from streams_app.fold import Fold
from streams_app.folding.core.event import FoldInput
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from tests.conftest import Names
from tests.simulation.counting import Counting
from tests.simulation.faults import FAULTS
from tests.simulation.mix import tolerated_in
from tests.simulation.world import run_schedule

SCHEDULES = 10

MIXES = [
    "",
    "behind",
    "history",
    "lossy",
    "lossy crash",
    "lossy crash zombie rebalance",
    "lossy wipe",
    "lossy rollback",
    "lossy drops rebalance",
    "lossy retention drops crash",
    "lossy latest crash zombie wipe",
    "lossy crash rebalance dying:fold",
    "history crash:2 rebalance:2 dying:fold dying:seal dying:unpack",
    "lossy crash zombie forget",
    "lossy crash zombie rebalance forget latest",
    "lossy crash zombie rebalance foldset",
    "lossy crash zombie rebalance foldset wipe rollback",
    "lossy crash zombie rebalance wipe rollback drops dying:fold",
    "lossy crash zombie rebalance wipe rollback drops retention latest",
    "lossy crash rebalance foldset forget wipe rollback latest",
    "late rollback foldset crash rebalance",
    "lossy freeze zombie",
    "stale zombie:3 rebalance:3",
    "clocks rebalance crash",
    "lossy settings crash zombie rebalance",
    "lossy clocks settings crash zombie rebalance",
    "late rollback crash",
    "fragile:seal crash",
    "fragile:fold fragile:outbox fragile:claim",
    "history lossy crash zombie rebalance",
    "history fragile:fold crash",
    "history fragile:fold rebalance:3",
    "history lossy wipe rollback drops rebalance",
    "history lossy crash rebalance dying:fold",
    "operator:2",
    "lossy operator:2 crash zombie rebalance",
    "lossy operator:2 wipe rollback crash",
    "history lossy operator:2 crash rebalance",
    "fragile:seal fragile:fold operator:3 crash",
    "dedupe",
    "dedupe history lossy crash zombie rebalance operator:2",
    "dedupe lossy crash wipe rollback drops rebalance",
    "dedupe history lossy crash rebalance dying:fold",
    "auto",
    "auto history lossy crash zombie rebalance",
    "auto lossy crash wipe rollback drops rebalance clocks",
]


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: mix or "no faults")
def test_folds_lose_invent_and_block_nothing_under_any_faults(client: redis.Redis, mix: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        outcome = run_schedule(client, mix, seed, tolerated=tolerated_in(mix))
        counts.update(outcome.counts)

        assert outcome.violations == [], outcome
    assert counts["events"] > 50 * SCHEDULES
    assert counts["records"] > 25 * SCHEDULES
    assert [] == [fault for fault in mix.split() if fault in FAULTS and not counts[fault]], "a fault never happened"
    assert counts["dropped"] > SCHEDULES or "operator" not in mix
    assert counts["quiet-changed"] > SCHEDULES or "auto" not in mix
    if "dedupe" not in mix:  # a fold with ids packs no group
        assert counts["packed"] > 3 * SCHEDULES
        assert counts["outgrown"] + counts["unpacked"] > SCHEDULES
        # Remains need a script that dies at one certain write: only mixes in which many scripts die always have some.
        assert counts["packed-remains"] + counts["packed-twice"] > SCHEDULES or "dying:unpack" not in mix


TOY_MIXES = [
    "",
    "history",
    "lossy",
    "lossy crash zombie rebalance",
    "lossy crash zombie rebalance clocks",
    "lossy wipe crash",
    "lossy rollback crash zombie",
    "stale zombie:6 rebalance:6",
    "lossy drops:3 rebalance:2",
    "lossy crash zombie rebalance wipe rollback drops",
    "late rollback crash",
    "fragile:count fragile:claim",
]


@pytest.mark.parametrize("mix", TOY_MIXES, ids=lambda mix: mix or "no faults")
def test_toy_processor_counts_every_event_once_under_any_faults(client: redis.Redis, mix: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        outcome = run_schedule(client, mix, seed, subject=Counting)
        counts.update(outcome.counts)

        assert outcome.violations == [], outcome
    assert counts["records"] > 50 * SCHEDULES


def test_schedule_is_determined_by_its_mix_and_seed(client: redis.Redis) -> None:
    mix = "lossy crash zombie rebalance rollback"
    first, repeated, other = (run_schedule(client, mix, seed) for seed in (3, 3, 4))

    assert first == repeated
    assert first.counts != other.counts


def test_schedule_leaves_no_key_behind(client: redis.Redis) -> None:
    run_schedule(client, "lossy crash", 1)

    assert [] == list(client.scan_iter("{sim-*"))


# Regressions


def test_committed_position_never_goes_back(client: redis.Redis) -> None:
    for seed in range(20):
        outcome = run_schedule(client, "fragile:seal", seed)

        assert outcome.violations == [], outcome


def test_watermark_advances_after_a_rollback_to_a_state_between_seal_and_finish(client: redis.Redis) -> None:
    for seed in range(40):
        outcome = run_schedule(client, "rewind rollback:2", seed)

        assert outcome.violations == [], outcome


async def test_records_sealed_by_a_fold_are_sent_although_its_reply_and_the_next_one_are_missing(
    redis_client: redis.asyncio.Redis, names: Names
) -> None:
    fold = Fold(name="a", source="t", group_key="a", changed="m", quiet_period=timedelta(seconds=1), max_events=1)
    shard = Shard(fold, TP("t", 0), ShardStore(FoldScripts(redis_client), shard_keys(names.app_id, "a", "t", 0)))
    await shard.claim(0, 1)
    events: list[FoldInput] = [(0, 1, b"sp", {})]
    (chunk,) = shard.chunks(events, 0, ReaderView(None, None), 1)
    progress = shard.begin(chunk, lambda: events)
    await shard.fold_once(progress)
    shard.fence = -1  # the reply was lost
    shard.outbox.load([])
    with patch.object(shard.store, "outbox", side_effect=ConnectionError), pytest.raises(ConnectionError):
        await shard.fold_once(progress)
    await shard.fold_once(progress)

    assert [0] == [entry.first_offset for entry in shard.outbox]
