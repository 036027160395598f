"""Positions of many folds in the few bytes of metadata that a broker stores with a commit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.delivery.offset_metadata import MAX_METADATA_BYTES, OffsetAndMetadata, commit_of, offsets_of, packed, unpacked
from streams_app.fold import Fold
from streams_app.folding.metadata_size import faults_of, metadata_bytes

MOST = 2**40 - 1
names = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,62}", fullmatch=True) | st.from_regex(r"[ab0][ab0-]{0,3}", fullmatch=True)
positions = st.dictionaries(names, st.integers(0, MOST), min_size=1, max_size=12)


def long_names(count: int) -> list[str]:
    return [f"metrics-by-region-and-product-for-the-customer-dashboard-{number:06d}" for number in range(count)]


def fold(name: str, **more: Any) -> Fold:
    return Fold(name=name, **{"source": "events", "group_key": "id", "changed": "m", "quiet_period": "1s"} | more)


def test_packed_names_share_prefixes_and_offsets_are_differences() -> None:
    found = packed({"metrics-eu": 1_000_000_007, "metrics-us": 1_000_000_000, "likes": 1_000_000_000}, {"metrics-us": "4"})

    assert "~1000000000;likes=0,metrics-eu=7,8*us=0/4" == found


@given(positions, st.text(min_size=1))
def test_packed_offsets_are_unpacked_unchanged(offsets: dict[str, int], count: str) -> None:
    counts = dict.fromkeys(list(offsets)[::2], count)

    assert (offsets, counts) == unpacked(packed(offsets, counts))


@given(positions, st.integers(1, 300))
def test_packed_size_never_exceeds_the_estimate(offsets: dict[str, int], count: int) -> None:
    began = dict.fromkeys(list(offsets)[::2], str(count))

    assert len(packed(offsets, began)) <= metadata_bytes(offsets, began)


@pytest.mark.parametrize(
    "text", ["", "~", "~1", "~1;", "~;a=1", "~1;a", "~1;a=", "~1;a=-1", "~1;a=1,", "~1;A=1", "~x;a=1", "1;a=1", "{}"]
)
def test_other_text_is_not_unpacked(text: str) -> None:
    assert None is unpacked(text)


@given(st.text("~;=*/,a0-", max_size=12))
def test_reader_survives_any_text(text: str) -> None:
    unpacked(f"~1;{text}")


def test_few_offsets_are_json_and_many_are_packed_and_both_are_readable() -> None:
    few, many = (
        dict.fromkeys(long_names(40), OffsetAndMetadata(9)),
        dict.fromkeys(long_names(65), OffsetAndMetadata(2**39)) | {"a": OffsetAndMetadata(7, "4")},
    )

    assert "{" == commit_of(few).metadata[0]
    assert few == offsets_of(commit_of(few), [])
    assert ("~", 7) == (commit_of(many).metadata[0], commit_of(many).offset)
    assert many == offsets_of(commit_of(many), [])


def test_sixty_five_folds_with_long_names_fit_into_one_commit_at_any_offsets() -> None:
    most = {name: OffsetAndMetadata(MOST * (number % 2)) for number, name in enumerate(long_names(65))}

    assert [] == faults_of([fold(name) for name in most])
    assert len(commit_of(most).metadata) <= MAX_METADATA_BYTES


def test_foreign_metadata_with_the_packed_prefix_is_ignored() -> None:
    assert {"likes": OffsetAndMetadata(5)} == offsets_of(PartitionCommit(5, "~ hand-made"), ["likes"])


def test_folds_whose_offsets_would_exceed_commit_metadata_are_rejected_with_the_arithmetic() -> None:
    few = [fold(f"{number:063d}"[::-1], source="others") for number in range(30)]
    many = [fold(f"{number:063d}"[::-1]) for number in range(65)]
    (fault,) = faults_of([*few, *many])
    most = metadata_bytes([each.name for each in many])

    assert fault.startswith("65 folds of events are too many for one application")
    assert f"{most - 65 * 15} bytes for the names and {65 * 15} for offsets of up to 13 digits make {most}" in fault
    assert f"a broker takes {MAX_METADATA_BYTES} (offset.metadata.max.bytes)" in fault


def test_fold_that_starts_at_the_end_needs_room_for_its_partition_count() -> None:
    assert len("/9999") == metadata_bytes(["a"], ["a"]) - metadata_bytes(["a"])
