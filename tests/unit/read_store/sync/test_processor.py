"""The processor of the read store on a real SQLite file: what it stores and commits, and its release."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.read_store.core.store import CheckpointStep
from streams_app.read_store.sqlite import connection
from streams_app.read_store.sync.store_sync import MAX_RECORDS
from tests.helpers.waiting import wait_until
from tests.unit.read_store.sync.store_processor import LIMIT_SECONDS, P0, P1, Store, batch_of, claim_of, opened


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait 0.1 s instead of a second for a database that is locked, for tests in which it stays locked."""
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.1)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(tmp_path) as store:
        yield store


# Sync


async def test_range_is_synced_in_order_and_its_end_becomes_offset_and_progress(store: Store) -> None:
    processor = store.processor()
    await processor.claim(claim_of(topic_id="x"))
    processor.deliver(batch_of(range(2 * MAX_RECORDS + 1), end=2_000))
    in_flight = processor.in_flight
    await store.reaches(processor, 2_000)

    assert (2 * MAX_RECORDS + 1, 0) == (in_flight, processor.in_flight)
    position = await processor.position_to_commit()
    assert position is not None
    assert (2_000, "x", 2_000) == (position.offset, position.metadata.partition("~")[0], await store.checkpoint())
    assert {f"n{offset}" for offset in range(2 * MAX_RECORDS + 1)} == store.names()


async def test_step_stores_the_first_offset_it_has_not_written(store: Store) -> None:
    processor = store.processor()
    seen: list[int] = []
    apply = store.sync.store.apply

    async def recorded(changes: object, step: CheckpointStep, now_ms: int) -> object:
        seen.append(step.to)
        return await apply(changes, step, now_ms)  # type: ignore[arg-type]  # passed on

    store.sync.store.apply = recorded  # type: ignore[method-assign,assignment]  # to observe every step
    await processor.claim(claim_of())
    processor.deliver(batch_of(range(10, 10 + MAX_RECORDS + 1), end=900))
    await store.reaches(processor, 900)

    assert [10 + MAX_RECORDS, 900] == seen


async def test_range_without_records_advances_the_offset(store: Store) -> None:
    processor = store.processor()
    await processor.claim(claim_of())
    processor.deliver(batch_of(range(0), end=7))
    await store.reaches(processor, 7)

    assert 0 == processor.in_flight


async def test_commit_waits_for_the_answer_of_the_store(store: Store) -> None:
    assert None is await store.processor().position_to_commit()


@pytest.mark.usefixtures("short_wait")
async def test_unavailable_store_is_awaited_and_reported_once_and_nothing_is_skipped(
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
        await wait_until(lambda: len(store.processors.outages._waiting) == 2, LIMIT_SECONDS, "both have tried")
        in_flight = first.in_flight, second.in_flight
        writer.execute("ROLLBACK")
    await store.reaches(first, 3)
    await store.reaches(second, 9)
    lines = [record.getMessage() for record in caplog.records if "read store sync" in record.getMessage()]

    assert (3, 4) == in_flight
    assert [f"read store sync does not work, waiting for it error=read store dashboard {store.path}: database is locked",
            "read store sync works again"] == lines  # fmt: skip
    assert (False, True) == (store.reported[2], store.reported[-1])
    assert {"n0", "n1", "n2", "n5", "n6", "n7", "n8"} == store.names()


async def test_records_the_store_cannot_accept_block_only_their_partition(store: Store) -> None:
    good, bad = store.processor(), store.processor(P1)
    sync_once = store.sync.sync_once

    async def failing_in_one_partition(step: CheckpointStep, *rest: object) -> object:
        if step.tp == P1:
            raise RuntimeError("not these")
        return await sync_once(step, *rest)  # type: ignore[arg-type]  # passed on

    store.sync.sync_once = failing_in_one_partition  # type: ignore[method-assign,assignment]  # a fault of one partition alone
    await good.claim(claim_of(position=OffsetAndMetadata(0)))
    await bad.claim(claim_of(P1, position=OffsetAndMetadata(0)))
    bad.deliver(batch_of(range(2), tp=P1))
    await wait_until(lambda: store.reported and not store.reported[-1], LIMIT_SECONDS, "the other one has failed")
    good.deliver(batch_of(range(2)))
    await store.reaches(good, 2)

    assert (0, 2) == (good.in_flight, bad.in_flight)
    assert not store.reported[-1]


# A restored older store


async def test_restored_store_is_reclaimed_and_nothing_is_written_or_committed(store: Store) -> None:
    processor, claim = store.processor(), claim_of()
    await processor.claim(claim)
    processor.deliver(batch_of(range(5)))
    await store.reaches(processor, 5)
    await store.sync.set_checkpoint(P0, 2)
    processor.deliver(batch_of(range(5, 9)))
    await wait_until(lambda: claim.rejections, LIMIT_SECONDS, "it is rejected")

    assert "has progress 2 for s.f-0, expected 5" in claim.rejections[0]
    assert (None, 2, {f"n{n}" for n in range(5)}) == (
        await processor.position_to_commit(),
        await store.checkpoint(),
        store.names(),
    )
    assert store.reported[-1]


async def test_restored_store_is_detected_while_idle(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams_app.read_store.sync.processor.CHECK_SECONDS", 0.01)
    processor, claim = store.processor(), claim_of()
    await processor.claim(claim)
    processor.deliver(batch_of(range(5), end=8))
    await store.reaches(processor, 8)
    processor.deliver(batch_of(range(9, 9), end=20))
    await store.reaches(processor, 20)
    await store.sync.set_checkpoint(P0, 2)
    await wait_until(lambda: claim.rejections, LIMIT_SECONDS, "it is rejected")

    assert "has progress 2 for s.f-0, expected 8" in claim.rejections[0]


# Release


async def test_release_finishes_the_current_transaction_and_drops_the_rest(store: Store) -> None:
    processor = store.processor()
    await processor.claim(claim_of())
    processor.deliver(batch_of(range(MAX_RECORDS * 40)))
    await wait_until(lambda: store.processors.is_busy_with(processor), LIMIT_SECONDS, "the first transaction is in progress")
    await processor.revoke(LIMIT_SECONDS)
    position = await processor.position_to_commit()

    assert position is not None
    assert (await store.checkpoint(), True) == (position.offset, 0 < position.offset < MAX_RECORDS * 40)


@pytest.mark.usefixtures("short_wait")
async def test_release_does_not_wait_for_an_unavailable_store(store: Store) -> None:
    processor = store.processor()
    await processor.claim(claim_of())
    with closing(sqlite3.connect(store.path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        processor.deliver(batch_of(range(3)))
        await wait_until(lambda: store.reported[1:] and not store.reported[-1], LIMIT_SECONDS, "it has failed")
        await wait_until(lambda: store.processors.is_busy_with(processor), LIMIT_SECONDS, "it is tried again")
        async with asyncio.timeout(LIMIT_SECONDS):
            await processor.revoke(0.1)

    assert OffsetAndMetadata(0) == await processor.position_to_commit()
    assert {} == store.processors.outages._waiting


async def test_release_of_one_partition_does_not_interrupt_writes_of_another(store: Store) -> None:
    busy = store.processor()
    await busy.claim(claim_of(position=OffsetAndMetadata(0)))
    busy.deliver(batch_of(range(MAX_RECORDS * 40)))
    for _ in range(20):
        other = store.processor(P1)
        await other.claim(claim_of(P1, position=OffsetAndMetadata(0)))
        other.deliver(batch_of(range(3), tp=P1))
        await asyncio.sleep(0)  # its task begins
        await other.revoke(0)
    await store.reaches(busy, MAX_RECORDS * 40)

    assert False not in store.reported
