"""What a partition takes from its reader, when it is claimed again, and what it lets be committed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from itertools import islice
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.partition_clock import FRESH_MS, ReaderView
from streams_app.delivery.trusted_clock import TrustedClock
from streams_app.fold import Fold
from streams_app.folding.agents.ownership import IDLE_MS, LONG_AGO_MS, Ownership
from streams_app.folding.agents.parts import Hooks, Parts
from streams_app.folding.agents.processor import RESET, STUCK_MS, Partition
from streams_app.folding.core.chunks import LIVE_COST, UPDATE_COST, FoldEvent
from streams_app.folding.shard.shard import Shard
from streams_app.metrics import Metrics
from streams_app.settings import Settings
from streams_app.status import Status
from tests.virtual_loop import VirtualLoop

TP0 = TP("t", 0)
TICK_SECONDS = 0.5
FOLDS = tuple(Fold(name=name, source="t", group_key="g", changed="m", quiet_period=timedelta(seconds=1)) for name in "ab")


def parts_at(monotonic_ms: int) -> Parts:
    settings = Settings(app_id="a", folds=FOLDS, worker={"tick": "500ms"})
    clock: Any = SimpleNamespace(monotonic_ms=lambda: monotonic_ms, now_ms=lambda: monotonic_ms)
    return Parts(settings, cast("Any", None), cast("Any", None), clock, Metrics(settings), Status())


def partition_of(parts: Parts, refused: list[str], watermarks: Sequence[int | None] = (5, 5), fence: int = 9) -> Partition:
    shards = []
    for fold, low in zip(FOLDS, watermarks, strict=True):
        shard = Shard(fold, "t", 0, cast("Any", SimpleNamespace(watermark=_returning(low))))
        shard.fence = fence
        shards.append(shard)
    hooks = Hooks(
        lambda _, script, cause: refused.append(f"{script} {cause}"), lambda _: None, refused_crash, TrustedClock(parts.clock)
    )
    partition = Partition(TP0, shards, {}, [], parts, hooks)
    partition.is_claimed, partition.seek_number, partition.position = True, 3, 10
    return partition


def _returning(low: int | None) -> Any:
    async def watermark() -> int | None:
        return low

    return watermark


def refused_crash(error: BaseException) -> None:
    raise error


def batch(begin: int, end: int, seek_number: int = 3) -> Batch:
    return Batch(TP0, [], begin, end, stable_offset=end, fetched_at_ms=0, seek_number=seek_number)


# What is delivered


@pytest.mark.parametrize(
    ("delivered", "waiting", "refusals"),
    [
        pytest.param(batch(10, 12), 1, [], id="the next range"),
        pytest.param(batch(14, 15), 1, [], id="a later one: the chain rule will see the hole"),
        pytest.param(batch(0, 2), 0, [f"fold {RESET}"], id="the client was thrown back"),
        pytest.param(batch(0, 2, seek_number=2), 0, [], id="fetched before the seek"),
    ],
)
def test_a_range_below_the_position_is_a_reset_unless_it_was_fetched_before_the_seek(
    delivered: Batch, waiting: int, refusals: list[str]
) -> None:
    found: list[str] = []
    partition = partition_of(parts_at(0), found)
    partition.deliver(delivered)

    assert (waiting, refusals) == (partition.waiting, found)


# What every tick looks at


class Consumer:
    """Where a reader stands."""

    def __init__(self, position: int | None) -> None:
        self.position = position
        self.paused: set[TP] = set()

    def assignment(self) -> set[TP]:
        return set()

    def pause_partitions(self, tps: set[TP]) -> None:
        self.paused |= tps

    def reader_view(self, tp: TP) -> tuple[ReaderView, int | None]:
        return ReaderView(None, None), self.position


@pytest.mark.parametrize(
    ("position", "idle_ms", "causes"),
    [
        pytest.param(10, IDLE_MS + 1, set(), id="nothing to read"),
        pytest.param(12, IDLE_MS, set(), id="ahead, not for long"),
        pytest.param(12, IDLE_MS + 1, {"idle"}, id="ahead, and nothing comes"),
        pytest.param(4, 0, {RESET}, id="thrown back, and nothing comes"),
        pytest.param(None, IDLE_MS + 1, set(), id="no position yet"),
    ],
)
async def test_a_reader_that_is_not_where_it_should_be_is_noticed_in_silence(
    position: int | None, idle_ms: int, causes: set[str]
) -> None:
    parts, consumer = parts_at(idle_ms), Consumer(position)
    ownership = Ownership(parts, cast("Any", lambda: consumer), lambda: 1, refused_crash)
    partition = partition_of(parts, [])
    partition.progress_ms = 0
    ownership.partitions[TP0] = partition
    ownership.tick_once()
    await asyncio.sleep(0)
    (family,) = parts.metrics.resyncs.collect()

    assert causes == {sample.labels["cause"] for sample in family.samples if sample.value and sample.name.endswith("_total")}
    assert ({TP0} if causes else set()) == consumer.paused
    ownership.partitions.clear()
    await ownership.stop()


@pytest.mark.parametrize(
    ("before", "ticks"),
    [
        pytest.param(2, [[0, 0, 1, 2], [0, 0.5, 1.25, 2.25], [1, 1.5, 2.5], [1, 1.75, 2.75]], id="two, then two more"),
        pytest.param(1, [[0, 0, 1, 2]], id="one"),
    ],
)
def test_partitions_emit_one_after_the_other_within_a_tick_and_new_ones_at_once(
    before: int, ticks: list[list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = parts_at(0)
    partitions = {TP("t", number): partition_of(parts, []) for number in range(len(ticks))}
    woken: dict[Partition, list[float]] = {partition: [] for partition in partitions.values()}
    monkeypatch.setattr(Partition, "tick", lambda partition: woken[partition].append(asyncio.get_running_loop().time()))

    async def three_ticks() -> None:
        ownership = Ownership(parts, cast("Any", lambda: Consumer(None)), lambda: 1, refused_crash)
        for count in (before, len(ticks), len(ticks)):
            ownership.partitions = dict(islice(partitions.items(), count))
            ownership.tick_once()
            await asyncio.sleep(TICK_SECONDS)
        ownership.partitions.clear()
        await ownership.stop()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(three_ticks())

    assert [[tick * TICK_SECONDS for tick in times] for times in ticks] == list(woken.values())


@pytest.mark.parametrize("backlog", ["merge", "sessions"])
@pytest.mark.parametrize(
    ("fetched_ms", "now_ms", "caught_up_at_ms", "chunks"),
    [
        pytest.param(FRESH_MS, FRESH_MS, 0, 2, id="at the end just before"),
        pytest.param(FRESH_MS, 2 * FRESH_MS, 0, 2, id="and fetched not long ago"),
        pytest.param(FRESH_MS + 1, FRESH_MS + 1, 0, 1, id="at the end long ago"),
        pytest.param(FRESH_MS, 2 * FRESH_MS + 1, 0, 1, id="fetched long ago"),
        pytest.param(0, 0, None, 1, id="never at the end"),
        pytest.param(FRESH_MS, FRESH_MS, 2 * FRESH_MS, 2, id="at the end, by clocks that differ a little"),
        pytest.param(FRESH_MS, FRESH_MS, 2 * FRESH_MS + 1, 1, id="at the end, by a clock that was ahead then"),
        pytest.param(2 * FRESH_MS, FRESH_MS, FRESH_MS, 2, id="fetched by a clock that differs a little"),
        pytest.param(2 * FRESH_MS + 1, FRESH_MS, 2 * FRESH_MS, 1, id="fetched by a clock that is ahead"),
    ],
)
def test_a_shard_folds_in_short_chunks_what_comes_while_it_is_at_the_end(
    fetched_ms: int, now_ms: int, caught_up_at_ms: int | None, chunks: int, backlog: str
) -> None:
    fold = Fold(name="a", source="t", group_key="g", changed="m", quiet_period=timedelta(hours=1), backlog=backlog)
    shard = Shard(fold, "t", 0, cast("Any", None))
    shard.caught_up_at_ms = caught_up_at_ms
    events = [FoldEvent(number, 0, b"s%d" % number, {}) for number in range(-(-LIVE_COST // UPDATE_COST) + 1)]

    found = shard.chunks(events, len(events) - 1, ReaderView(len(events), fetched_ms), now_ms)

    assert chunks == len(list(found))


# What may be committed


@pytest.mark.parametrize(
    ("watermarks", "offset", "metadata"),
    [
        pytest.param([7, 30], 7, '{"a":7,"b":30,"c":90}', id="the lowest of all"),
        pytest.param([2, 30], 4, '{"a":4,"b":30,"c":90}', id="no mark goes back"),
        pytest.param([7, None], None, "", id="one fold has no state"),
        pytest.param([None, 30], None, "", id="the other has none"),
    ],
)
async def test_nothing_is_committed_while_any_fold_has_no_state(
    watermarks: list[int | None], offset: int | None, metadata: str
) -> None:
    partition = partition_of(parts_at(0), [], watermarks)
    partition.marks = {"a": 4, "b": 4, "c": 90}
    found = await partition.low_marks()

    assert (offset, metadata) == ((found.offset, found.metadata) if found else (None, ""))


# What it holds


@pytest.mark.parametrize(("still_ms", "held"), [(0, 6), (STUCK_MS, 6), (STUCK_MS + 1, 0)])
async def test_records_of_a_partition_that_does_not_move_count_for_nobody(still_ms: int, held: int) -> None:
    parts = parts_at(still_ms)
    partition, moving = partition_of(parts, []), partition_of(parts, [])
    partition.progress_ms, moving.progress_ms = 0, still_ms
    for begin in (10, 12):
        found = batch(begin, begin + 2)
        found.records = [None] * 3
        partition.deliver(found)
    moving.deliver(batch(10, 12))
    ownership = Ownership(parts, cast("Any", lambda: None), lambda: 1, refused_crash)
    ownership.partitions.update({TP0: partition, TP("t", 1): moving})

    assert held == ownership.held()
    ownership.partitions.clear()
    await ownership.stop()


def test_a_partition_that_gets_no_further_is_claimed_at_growing_intervals_and_says_so() -> None:
    parts = parts_at(5_000)
    ownership = Ownership(parts, cast("Any", lambda: None), lambda: 1, refused_crash)
    stuck = [ownership._delay_seconds(partition_of(parts, [], fence=9), "seal: why") for _ in range(5)]
    is_told = [any("seal: why" in reason for reason in parts.status.ready_reasons())]
    stuck.append(ownership._delay_seconds(partition_of(parts, [], fence=9), "seal: why"))
    is_told.append(any("seal: why" in reason for reason in parts.status.ready_reasons()))
    moved = [ownership._delay_seconds(partition_of(parts, [], fence=fence), "seal: why") for fence in (10, 11, 11)]
    parts.clock.monotonic_ms = lambda: 5_000 + LONG_AGO_MS  # type: ignore[method-assign]  # a clock of this test
    later = ownership._delay_seconds(partition_of(parts, [], fence=11), "seal: why")

    assert [0.05, 0.2, 0.5, 1.0, 2.0, 2.0] == stuck
    assert [False, True] == is_told
    assert [0.05, 0.05, 0.2, 0.05] == [*moved, later]
