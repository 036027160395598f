"""The processor of the read store on a real SQLite file: where it begins, what it holds, what a mark promises."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.processor import Claim, Edges, Mark
from streams_app.metrics import Metrics
from streams_app.patience import Patience
from streams_app.read_store.agents.processor import StoreProcessor, StoreProcessors, beginning
from streams_app.read_store.agents.sync import MAX_RECORDS, Sync
from streams_app.read_store.targets.port import Step
from streams_app.settings import Settings
from tests.helpers import wait_until
from tests.manual_clock import ManualClock
from tests.records import Raw

P0, P1 = TP("s.f", 0), TP("s.f", 1)
LIMIT_SECONDS = 20


class Partition:
    """What the layer keeps of a partition: it notes what the processor says."""

    def __init__(self) -> None:
        self.committed: list[Mark] = []
        self.errors: list[BaseException] = []
        self.steps = 0
        self.refusals: list[str] = []

    def refused(self, cause: str, why: str, script: str) -> None:
        self.refusals.append(f"{cause}: {why}")

    def fatal(self, error: BaseException) -> None:
        self.errors.append(error)

    def applied(self) -> None:
        self.steps += 1

    async def commit_now(self, name: str, mark: Mark) -> None:
        self.committed.append(mark)

    async def elsewhere(self, name: str) -> Mapping[int, Mark | None]:
        return {}

    def reader_view(self) -> object:
        raise AssertionError("nobody asks")


def claim_of(
    tp: TP = P0, *, mark: Mark | None = None, begin: int = 0, end: int = 10**6, topic_id: str = "", was_reset: bool = False
) -> Claim:
    partition: Any = Partition()
    return Claim(tp, "sqlite", 1, "m", mark, Edges(begin, end, 0), 2, topic_id, was_reset, partition)


def folded(offset: int, tp: TP = P0) -> Raw:
    value = {"id": f"g{tp.partition}", "m": {f"n{offset}": offset}, "fold": {"name": "f", "version": offset}}
    return Raw(offset, key=b"g%d" % tp.partition, value=json.dumps(value).encode())


def batch_of(offsets: range, end: int | None = None, tp: TP = P0) -> Batch:
    """Records at these offsets in a range that may go on behind them."""
    until = offsets.stop if end is None else end
    records = [folded(offset, tp) for offset in offsets]
    return Batch(tp, records, offsets.start, until, stable_offset=until, fetched_at_ms=0, seek_number=0)


class Store:
    """A store of its own file, its processors, and what was told of it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "read.db"
        self.told: list[bool] = []
        settings = Settings.model_validate({
            "app_id": "t",
            "folds": [{"name": "f", "source": "s", "group_key": "id", "changed": "m", "keep": "last", "quiet_period": "1s"}],
            "read_stores": [
                {"name": "dashboard", "url": f"sqlite:///{self.path}", "table": "cells", "folds": ["f"], "source": "carried"}
            ],
        })  # fmt: skip
        self.sync = Sync(settings, settings.read_store(None), Metrics(settings), ManualClock(50))
        self.processors = StoreProcessors(self.sync, Patience("read store sync", self.told.append))
        self.made: list[StoreProcessor] = []

    def processor(self, tp: TP = P0) -> StoreProcessor:
        (made,) = self.processors.of(tp, ()).values()
        self.made.append(made)
        return made

    def names(self) -> set[str]:
        with closing(sqlite3.connect(self.path)) as connection:
            return {name for (name,) in connection.execute("SELECT name FROM cells")}

    async def progress(self, tp: TP = P0) -> int | None:
        return (await self.sync.progress()).get(tp)

    async def reaches(self, processor: StoreProcessor, offset: int) -> None:
        async def is_there() -> bool:
            mark = await processor.mark()
            return mark is not None and mark.offset == offset

        await wait_until(is_there, LIMIT_SECONDS, f"the mark is {offset}")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store(tmp_path)
    await opened.sync._store.initialise()
    yield opened
    for processor in opened.made:
        await processor.revoke(0)
    await opened.sync.close()


# Where it begins


@pytest.mark.parametrize(
    ("stored", "claim", "expected"),
    [
        (None, claim_of(begin=3), 3),
        (None, claim_of(begin=3, mark=Mark(7)), 3),
        (5, claim_of(mark=Mark(9)), 5),
        (9, claim_of(mark=Mark(5)), 9),
        (5, claim_of(begin=8), 8),
        (50, claim_of(end=20), 50),
        (50, claim_of(end=20, was_reset=True), 0),
        (5, claim_of(end=20, was_reset=True), 0),
        (5, claim_of(mark=Mark(5, "old"), topic_id="new"), 0),
        (5, claim_of(mark=Mark(5, "same"), topic_id="same"), 5),
        (5, claim_of(mark=Mark(5, "old"), topic_id=""), 5),
        (5, claim_of(mark=Mark(5, ""), topic_id="new"), 5),
    ],
)
def test_a_partition_goes_on_where_the_store_says_unless_its_log_is_new(stored: int | None, claim: Claim, expected: int) -> None:
    assert expected == beginning(stored, claim)


async def test_where_nothing_was_ever_committed_kafka_is_asked_before_anything_is_written(store: Store) -> None:
    claim = claim_of(begin=4, topic_id="x")
    start = await store.processor().claim(claim)

    assert (4, [Mark(4, "x")]) == (start, claim._partition.committed)  # type: ignore[attr-defined]  # of the notes


async def test_a_topic_that_was_made_again_lowers_the_progress_before_anything_arrives(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await store.sync.begin(P0, 90)
    start = await store.processor().claim(claim_of(mark=Mark(90), end=2, was_reset=True))

    assert (0, 0) == (start, await store.progress())
    assert "an output topic was made again, reading it from its start source=s.f-0 offset=0 stored_offset=90" in caplog.text


async def test_what_retention_has_removed_is_told(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    await store.sync.begin(P0, 5)
    start = await store.processor().claim(claim_of(mark=Mark(5), begin=8))

    assert 8 == start
    assert "retention overtook the read store" in caplog.text
    assert "source=s.f-0 offsets=5-7" in caplog.text


# Syncing


async def test_a_range_is_synced_in_order_and_its_end_is_the_mark_and_the_progress(store: Store) -> None:
    processor = store.processor()
    await processor.claim(claim_of(topic_id="x"))
    processor.deliver(batch_of(range(2 * MAX_RECORDS + 1), end=2_000))
    held = processor.held
    await store.reaches(processor, 2_000)

    assert (2 * MAX_RECORDS + 1, 0) == (held, processor.held)
    assert (Mark(2_000, "x"), 2_000) == (await processor.mark(), await store.progress())
    assert {f"n{offset}" for offset in range(2 * MAX_RECORDS + 1)} == store.names()


async def test_a_step_notes_the_first_offset_it_has_not_taken(store: Store) -> None:
    processor = store.processor()
    seen: list[int] = []
    apply = store.sync._store.apply

    async def noted(changes: object, step: Step, now_ms: int) -> object:
        seen.append(step.to)
        return await apply(changes, step, now_ms)  # type: ignore[arg-type]  # passed on

    store.sync._store.apply = noted  # type: ignore[method-assign,assignment]  # to look at every step
    await processor.claim(claim_of())
    processor.deliver(batch_of(range(10, 10 + MAX_RECORDS + 1), end=900))
    await store.reaches(processor, 900)

    assert [10 + MAX_RECORDS, 900] == seen


async def test_a_range_without_records_moves_the_mark(store: Store) -> None:
    processor = store.processor()
    await processor.claim(claim_of())
    processor.deliver(batch_of(range(0), end=7))
    await store.reaches(processor, 7)

    assert 0 == processor.held


async def test_nothing_may_be_committed_before_the_store_was_asked(store: Store) -> None:
    assert None is await store.processor().mark()


async def test_a_store_that_is_away_is_waited_for_told_once_and_nothing_is_skipped(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    first, second = store.processor(), store.processor(P1)
    await first.claim(claim_of())
    await second.claim(claim_of(P1))
    with closing(sqlite3.connect(store.path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        first.deliver(batch_of(range(3)))
        second.deliver(batch_of(range(5, 9), tp=P1))
        await wait_until(lambda: len(store.processors._patience._waiting) == 2, LIMIT_SECONDS, "both have tried")
        held = first.held, second.held
        writer.execute("ROLLBACK")
    await store.reaches(first, 3)
    await store.reaches(second, 9)
    lines = [record.getMessage() for record in caplog.records if "read store sync" in record.getMessage()]

    assert (3, 4) == held
    assert [f"read store sync does not work, waiting for it error=read store dashboard {store.path}: database is locked",
            "read store sync works again"] == lines  # fmt: skip
    assert (False, True) == (store.told[2], store.told[-1])
    assert {"n0", "n1", "n2", "n5", "n6", "n7", "n8"} == store.names()


async def test_records_the_store_cannot_take_hold_up_their_partition_only(store: Store) -> None:
    good, bad = store.processor(), store.processor(P1)
    sync_once = store.sync.sync_once

    async def picky(step: Step, *rest: object) -> object:
        if step.tp == P1:
            raise RuntimeError("not these")
        return await sync_once(step, *rest)  # type: ignore[arg-type]  # passed on

    store.sync.sync_once = picky  # type: ignore[method-assign,assignment]  # a fault of one partition alone
    await good.claim(claim_of(mark=Mark(0)))
    await bad.claim(claim_of(P1, mark=Mark(0)))
    bad.deliver(batch_of(range(2), tp=P1))
    await wait_until(lambda: store.told and not store.told[-1], LIMIT_SECONDS, "the other one has failed")
    good.deliver(batch_of(range(2)))
    await store.reaches(good, 2)

    assert (0, 2) == (good.held, bad.held)
    assert not store.told[-1]


# A store that has gone back


async def test_a_store_that_has_gone_back_is_claimed_again_and_nothing_is_written_or_committed(store: Store) -> None:
    processor, claim = store.processor(), claim_of()
    await processor.claim(claim)
    processor.deliver(batch_of(range(5)))
    await store.reaches(processor, 5)
    await store.sync.begin(P0, 2)
    processor.deliver(batch_of(range(5, 9)))
    said: list[str] = claim._partition.refusals  # type: ignore[attr-defined]  # of the notes
    await wait_until(lambda: said, LIMIT_SECONDS, "it is refused")

    assert "goes on with s.f-0 at 2, not at 5 where it was left" in said[0]
    assert (None, 2, {f"n{n}" for n in range(5)}) == (await processor.mark(), await store.progress(), store.names())
    assert store.told[-1]


async def test_a_store_that_has_gone_back_is_noticed_in_silence(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams_app.read_store.agents.processor.LOOK_SECONDS", 0.01)
    processor, claim = store.processor(), claim_of()
    await processor.claim(claim)
    processor.deliver(batch_of(range(5), end=8))
    await store.reaches(processor, 8)
    processor.deliver(batch_of(range(9, 9), end=20))
    await store.reaches(processor, 20)
    await store.sync.begin(P0, 2)
    said: list[str] = claim._partition.refusals  # type: ignore[attr-defined]  # of the notes
    await wait_until(lambda: said, LIMIT_SECONDS, "it is refused")

    assert "at 2, not at 8" in said[0]


# Letting go


async def test_letting_go_finishes_the_transaction_that_is_under_way_and_drops_the_rest(store: Store) -> None:
    processor = store.processor()
    await processor.claim(claim_of())
    processor.deliver(batch_of(range(MAX_RECORDS * 40)))
    await wait_until(lambda: store.processors.is_busy_with(processor), LIMIT_SECONDS, "the first transaction is under way")
    await processor.revoke(LIMIT_SECONDS)
    mark = await processor.mark()

    assert mark is not None
    assert (await store.progress(), True) == (mark.offset, 0 < mark.offset < MAX_RECORDS * 40)


async def test_letting_go_does_not_wait_for_a_store_that_is_away(store: Store) -> None:
    processor = store.processor()
    await processor.claim(claim_of())
    with closing(sqlite3.connect(store.path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        processor.deliver(batch_of(range(3)))
        await wait_until(lambda: store.told[1:] and not store.told[-1], LIMIT_SECONDS, "it has failed")
        await wait_until(lambda: store.processors.is_busy_with(processor), LIMIT_SECONDS, "it is tried again")
        async with asyncio.timeout(LIMIT_SECONDS):
            await processor.revoke(0.1)

    assert Mark(0) == await processor.mark()
    assert {} == store.processors._patience._waiting


async def test_letting_go_of_one_does_not_interrupt_what_the_store_does_for_another(store: Store) -> None:
    busy = store.processor()
    await busy.claim(claim_of(mark=Mark(0)))
    busy.deliver(batch_of(range(MAX_RECORDS * 40)))
    for _ in range(20):
        other = store.processor(P1)
        await other.claim(claim_of(P1, mark=Mark(0)))
        other.deliver(batch_of(range(3), tp=P1))
        await asyncio.sleep(0)  # its task begins
        await other.revoke(0)
    await store.reaches(busy, MAX_RECORDS * 40)

    assert False not in store.told
