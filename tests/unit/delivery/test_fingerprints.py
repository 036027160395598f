"""Fingerprints of the records that were read, and the offset up to which a log still contains them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from streams_app.delivery.fingerprints import (
    GONE,
    METADATA_NEAR,
    OTHER,
    Fingerprint,
    checksum_of,
    common_end,
    followed_by,
    of_text,
    thinned,
    to_text,
    with_last,
    with_last_for_metadata,
)


def record(offset: int, value: bytes | None = b"v", key: bytes | None = b"k", timestamp: int = 1) -> Any:
    return SimpleNamespace(offset=offset, timestamp=timestamp, key=key, value=value)


def read(end: int, tag: str = "old", step: int = 1) -> tuple[Fingerprint, ...]:
    kept: tuple[Fingerprint, ...] = ()
    for offset in range(0, end, step):
        kept = followed_by(kept, record(offset, f"{tag}{offset}".encode()))
    return kept


async def common(kept: tuple[Fingerprint, ...], same_below: int, end: int, begin: int = 0) -> int | None:
    """Find the common end for a log with the original records below `same_below` and other records up to its end."""

    async def checksum_at(offset: int) -> int:
        if offset < begin:
            return GONE
        tag = "old" if offset < same_below else "new"
        return checksum_of(record(offset, f"{tag}{offset}".encode())) if offset < end else OTHER

    return await common_end(kept, checksum_at)


@pytest.mark.parametrize("end", [100, 101, 5_000])
async def test_appended_log_has_a_matching_fingerprint(end: int) -> None:
    assert None is await common(read(100), 100, end)


@pytest.mark.parametrize("same_below", [99, 98, 90, 50, 1, 0])
@pytest.mark.parametrize("grown_to", [0, 1, 1_000], ids=["shorter", "one more", "grown"])
async def test_common_end_is_never_beyond_the_first_differing_record(same_below: int, grown_to: int) -> None:
    found = await common(read(100), same_below, same_below + grown_to)

    assert found is not None
    # Fingerprints become sparser with their age: the result is at most as far below `same_below` as the newest one is above it.
    assert same_below - (100 - same_below) <= found <= same_below


@pytest.mark.parametrize("same_below", [93, 97])
async def test_common_end_is_exact_if_the_last_records_differ(same_below: int) -> None:
    assert same_below == await common(read(100), same_below, 200)


async def test_fingerprints_removed_by_retention_prove_nothing() -> None:
    assert None is await common(read(100), 100, 300, begin=150)
    assert 0 == await common(read(100), 0, 300, begin=60)


async def test_state_without_fingerprints_is_not_compared() -> None:
    assert None is await common((), 0, 0)


@pytest.mark.parametrize("count", [1, 10, 100_000])
def test_few_fingerprints_are_kept_including_the_newest_and_the_oldest(count: int) -> None:
    kept = read(count, step=max(1, count // 3_000))

    assert len(kept) <= 80
    assert 0 == kept[0].offset
    assert [*sorted(kept)] == [*kept]
    assert len(thinned(kept, near=3, spread=1)) <= 24


def test_fingerprints_survive_conversion_to_text() -> None:
    kept = read(300)

    assert kept == of_text(to_text(kept))
    assert () == of_text("") == of_text("1:2") == of_text("1:0000000g,")


@pytest.mark.parametrize(
    "other",
    [record(1, b"w"), record(1, None), record(1, key=b"l"), record(1, key=None), record(1, b"", b"kv"), record(1, timestamp=2)],
)
def test_checksum_depends_on_everything_a_producer_sets(other: Any) -> None:
    assert checksum_of(record(1)) != checksum_of(other)


def test_fingerprint_of_the_last_record_is_added_only_if_it_is_newer() -> None:
    kept = read(10)

    assert [9, 12] == [one.offset for one in with_last(kept, [record(11), record(12)])[-2:]]
    assert (kept, kept) == (with_last(kept, [record(8), record(9)]), with_last(kept, []))


def test_metadata_contains_the_newest_fingerprints_and_fewer_older_ones() -> None:
    kept = whole = read(1)
    for offset in range(1, 200):
        whole, kept = with_last(whole, [record(offset)]), with_last_for_metadata(kept, [record(offset)])

    assert [196, 197, 198, 199] == [one.offset for one in kept[-METADATA_NEAR - 1 :]]
    assert len(kept) < len(whole)
    assert kept is with_last_for_metadata(kept, [record(199)])
