"""Low watermarks in a commit: one a fold, carried over for folds that this worker does not know, never lowered."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.delivery.offset_metadata import OffsetAndMetadata, check_format, commit_of, offsets_of, raised
from streams_app.errors import NewerFormatError
from streams_app.folding.agents.claim import partitions_at_first_start

offsets = st.integers(0, 2**40)
positions = st.dictionaries(
    st.text("abc-_0", min_size=1, max_size=5),
    st.builds(OffsetAndMetadata, offsets, st.sampled_from(["", "4", "a/b, c=d;ü"])),
    max_size=5,
)


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param("", id="a broker that keeps none"),
        pytest.param("written by somebody else", id="no JSON"),
        pytest.param("null", id="null"),
        pytest.param("[1,2]", id="an array"),
        pytest.param("7", id="a number"),
        pytest.param('{"likes": "7"}', id="an offset as text"),
        pytest.param('{"likes": 7.0}', id="an offset with a fraction"),
        pytest.param('{"likes": true}', id="a boolean is no offset"),
        pytest.param('{"likes": null}', id="null is no offset"),
        pytest.param('{"likes": -1}', id="a negative offset"),
        pytest.param('{"likes": 9, "shares": {}}', id="one of several is no offset"),
        pytest.param('{"likes": 9, "@notes": []}', id="notes of a wrong type"),
        pytest.param('{"likes": 9, "@notes": {"likes": 4}}', id="a note that is not a string"),
    ],
)
def test_committed_offset_applies_to_every_fold_without_usable_metadata(metadata: str) -> None:
    assert {"likes": OffsetAndMetadata(41), "shares": OffsetAndMetadata(41)} == offsets_of(
        PartitionCommit(41, metadata), ["likes", "shares"]
    )


@pytest.mark.parametrize("metadata", ["@98;", '@99;{"likes":5}', "@999999999;~5;likes=0"])
def test_commit_of_a_newer_format_is_not_read(metadata: str) -> None:
    with pytest.raises(NewerFormatError, match="the commit of t-0 has format"):
        check_format(TP("t", 0), metadata)


@pytest.mark.parametrize("metadata", ["", "~5;likes=0", '{"likes":5}', "@1;", "@", "written by somebody else; @99;"])
def test_commit_without_a_newer_format_is_read(metadata: str) -> None:
    check_format(TP("t", 0), metadata)


def test_metadata_gives_each_fold_its_own_offset() -> None:
    committed = PartitionCommit(5, '{"likes":5,"shares":9}')

    assert {"likes": OffsetAndMetadata(5), "shares": OffsetAndMetadata(9)} == offsets_of(committed, ["likes", "shares"])


def test_fold_missing_from_the_metadata_is_new_and_has_no_offset() -> None:
    assert {"likes": OffsetAndMetadata(5)} == offsets_of(PartitionCommit(5, '{"likes":5}'), ["likes", "shares"])


def test_offset_of_an_undeclared_fold_is_carried_over() -> None:
    read = offsets_of(PartitionCommit(5, '{"likes":5,"older":8}'), ["likes"])

    assert {"likes": 7, "older": 8} == json.loads(commit_of(raised(read, {"likes": OffsetAndMetadata(7)})).metadata)


def test_committed_offset_is_the_lowest_fold_offset() -> None:
    assert PartitionCommit(3, '{"a":3,"b":9}') == commit_of({"b": OffsetAndMetadata(9), "a": OffsetAndMetadata(3)})


@pytest.mark.parametrize(
    ("low", "expected"),
    [
        pytest.param(12, 12, id="a higher watermark raises the offset"),
        pytest.param(10, 10, id="an equal one keeps it"),
        pytest.param(4, 10, id="a lower one, after Redis was rolled back, does not lower it"),
    ],
)
def test_fold_offset_only_rises(low: int, expected: int) -> None:
    before = {"likes": OffsetAndMetadata(10, "as committed"), "other": OffsetAndMetadata(2)}
    metadata = "new" if low >= 10 else "as committed"

    assert {"likes": OffsetAndMetadata(expected, metadata), "other": OffsetAndMetadata(2)} == raised(
        before, {"likes": OffsetAndMetadata(low, "new")}
    )


def test_fold_without_an_offset_gets_one_with_its_first_watermark() -> None:
    assert {"likes": OffsetAndMetadata(10), "new": OffsetAndMetadata(3)} == raised(
        {"likes": OffsetAndMetadata(10)}, {"new": OffsetAndMetadata(3)}
    )


@given(positions.filter(bool))
def test_offsets_survive_a_round_trip_through_a_commit(offsets: dict[str, OffsetAndMetadata]) -> None:
    committed = commit_of(offsets)

    assert offsets == offsets_of(committed, offsets)
    assert min(position.offset for position in offsets.values()) == committed.offset


@given(positions, positions)
def test_raised_never_lowers_or_drops_an_offset(before: dict[str, OffsetAndMetadata], lows: dict[str, OffsetAndMetadata]) -> None:
    after = raised(before, lows)

    assert before.keys() | lows.keys() == after.keys()
    assert set() == {
        name
        for name, position in after.items()
        if position.offset < max(read.get(name, position).offset for read in (before, lows))
    }


# Where a fold with `start = "latest"` begins in a partition


@pytest.mark.parametrize(
    ("partition", "in_other_partitions", "expected"),
    [
        pytest.param(2, {}, 4, id="the first claim of the first start"),
        pytest.param(2, {0: OffsetAndMetadata(5, "4")}, 4, id="another partition of the first start"),
        pytest.param(4, {0: OffsetAndMetadata(5, "4"), 1: OffsetAndMetadata(5, "4")}, 4, id="a partition that was added later"),
        pytest.param(
            5, {0: OffsetAndMetadata(5, "4"), 4: OffsetAndMetadata(5, "4")}, 4, id="a second one keeps the count of the first start"
        ),
        pytest.param(2, {0: OffsetAndMetadata(5)}, 0, id="a fold that began before counts were stored"),
        pytest.param(2, {0: None}, 4, id="a broker that keeps no metadata"),
        pytest.param(9, {}, 10, id="a partition that the metadata of this host does not know yet"),
    ],
)
def test_fold_remembers_the_partition_count_at_its_start(
    partition: int, in_other_partitions: dict[int, OffsetAndMetadata | None], expected: int
) -> None:
    assert expected == partitions_at_first_start(partition, in_other_partitions, present=4)
