"""Where the processor of the read store begins in a partition, on a real SQLite file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streams_app.delivery.claim import Claim
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.errors import NewerFormatError
from streams_app.read_store.core.store import format_of, former_end_of
from tests.unit.read_store.sync.store_processor import P0, Store, claim_of, opened


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(tmp_path) as store:
        yield store


@pytest.mark.parametrize(
    ("stored", "claim", "expected"),
    [
        (None, claim_of(begin=3), 3),
        (None, claim_of(begin=3, position=OffsetAndMetadata(7)), 3),
        (5, claim_of(position=OffsetAndMetadata(9)), 5),
        (9, claim_of(position=OffsetAndMetadata(5)), 9),
        (5, claim_of(begin=8), 8),
        (50, claim_of(end=20), 0),
        (50, claim_of(end=20, was_reset=True), 0),
        (5, claim_of(end=20, was_reset=True), 0),
        (5, claim_of(position=OffsetAndMetadata(5, "old"), topic_id="new"), 0),
        (5, claim_of(position=OffsetAndMetadata(5, "same"), topic_id="same"), 5),
        (50, claim_of(end=20, position=OffsetAndMetadata(50, "same"), topic_id="same", was_reset=True), 0),
        (50, claim_of(end=20, position=OffsetAndMetadata(50, "same~4:0000000a"), topic_id="same", was_reset=True), 5),
        (5, claim_of(position=OffsetAndMetadata(5, "old"), topic_id=""), 5),
        (5, claim_of(position=OffsetAndMetadata(5, ""), topic_id="new"), 5),
    ],
)
async def test_claim_resumes_at_the_stored_progress_unless_the_log_is_new(
    store: Store, stored: int | None, claim: Claim, expected: int
) -> None:
    if stored is not None:
        await store.sync.set_checkpoint(P0, stored)

    assert expected == await store.processor().claim(claim)


async def test_claim_without_a_commit_commits_the_start_before_anything_is_written(store: Store) -> None:
    claim = claim_of(begin=4, topic_id="x")
    start = await store.processor().claim(claim)

    assert (4, [OffsetAndMetadata(4, "x")]) == (start, claim.commits)


async def test_partition_that_a_newer_version_has_written_is_neither_claimed_nor_committed(store: Store) -> None:
    await store.sync.set_checkpoint(P0, 7)
    await store.sync.set_checkpoint(format_of(P0), 99)
    claim = claim_of()

    with pytest.raises(NewerFormatError, match=r"s\.f-0 in read store 'dashboard' has format 99"):
        await store.processor().claim(claim)
    assert (7, []) == (await store.checkpoint(), claim.commits)


async def test_recreated_topic_lowers_the_progress_before_any_record_arrives(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await store.sync.set_checkpoint(P0, 90)
    start = await store.processor().claim(claim_of(position=OffsetAndMetadata(90), end=2, was_reset=True))

    assert (0, 0) == (start, await store.checkpoint())
    assert (
        "reading from the beginning: the log ends at offset 2, but read store dashboard has read up to offset 89, "
        "the topic was deleted and created again name=sqlite source=s.f-0"
    ) in caplog.text


async def test_records_removed_by_retention_are_reported(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    await store.sync.set_checkpoint(P0, 5)
    start = await store.processor().claim(claim_of(position=OffsetAndMetadata(5), begin=8))

    assert 8 == start
    assert "retention overtook the read store" in caplog.text
    assert "source=s.f-0 offsets=5-7" in caplog.text
    assert 3 == store.known_loss()


READ = "x~4:0000000a"
"""A position with the id of the topic and a fingerprint."""


@pytest.mark.parametrize(
    ("former_end", "claim", "expected"),
    [
        (10, claim_of(position=OffsetAndMetadata(50, READ), topic_id="x"), (50, 10)),
        (10, claim_of(position=OffsetAndMetadata(50, "x"), topic_id="x"), (50, 10)),
        (55, claim_of(position=OffsetAndMetadata(50, READ), topic_id="x"), (55, 55)),
        (60, claim_of(position=OffsetAndMetadata(50, READ), topic_id="x"), (60, 60)),
        (10, claim_of(position=OffsetAndMetadata(60, READ), topic_id="x"), (60, 10)),
        (10, claim_of(position=OffsetAndMetadata(50, READ), topic_id="x", common=40), (40, 10)),
        (45, claim_of(position=OffsetAndMetadata(50, READ), topic_id="x", common=40), (40, 40)),
        (45, claim_of(position=OffsetAndMetadata(50, READ), topic_id="y", begin=2), (2, 2)),
        (1, claim_of(position=OffsetAndMetadata(50, READ), topic_id="y", begin=2), (2, 1)),
    ],
    ids=[
        "crash",
        "crash-before-fingerprints",
        "crash-around-reset",
        "reset-took-all",
        "nothing-lost",
        "back-after",
        "back-before",
        "recreated",
        "recreated-long",
    ],
)
async def test_former_end_changes_only_for_another_log(
    store: Store, former_end: int, claim: Claim, expected: tuple[int, int]
) -> None:
    await store.sync.set_checkpoint(P0, 60)
    await store.sync.store.set_checkpoint(former_end_of(P0), former_end, 1)
    start = await store.processor().claim(claim)

    assert expected == (start, await store.checkpoint(former_end_of(P0)))
    assert start == await store.checkpoint()


async def test_records_removed_by_retention_are_also_counted_after_a_crash(store: Store) -> None:
    await store.sync.set_checkpoint(P0, 5)
    start = await store.processor().claim(claim_of(position=OffsetAndMetadata(3, "x~2:0000000a"), topic_id="x", begin=8))

    assert (8, 3) == (start, store.known_loss())
