"""The commits that remain after a reset."""

from __future__ import annotations

import pytest

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.delivery.offset_metadata import OffsetAndMetadata, commit_of, offsets_of
from streams_app.errors import NewerFormatError
from streams_app.operations.reset_fold import without_fold

FOLDS = ("likes", "shares")
SOURCE = TP("events", 0)


@pytest.mark.parametrize("start", [0, 99])
def test_reset_of_one_fold_keeps_the_offsets_of_the_others(start: int) -> None:
    committed = commit_of(
        {"likes": OffsetAndMetadata(5, "3"), "shares": OffsetAndMetadata(9, "4"), "of a newer worker": OffsetAndMetadata(7)}
    )
    left = without_fold(SOURCE, committed, FOLDS, "likes", start)

    assert left is not None
    assert {"shares": OffsetAndMetadata(9, "4"), "of a newer worker": OffsetAndMetadata(7)} == offsets_of(left, FOLDS)
    assert 7 == left.offset


@pytest.mark.parametrize("start", [0, 99])
def test_single_fold_restarts_at_the_initial_offset(start: int) -> None:
    assert commit_of({"likes": OffsetAndMetadata(start)}) == without_fold(
        SOURCE, commit_of({"likes": OffsetAndMetadata(5)}), ["likes"], "likes", start
    )


def test_commit_without_the_fold_is_unchanged() -> None:
    assert None is without_fold(SOURCE, commit_of({"shares": OffsetAndMetadata(5)}), FOLDS, "likes", 0)
    assert None is without_fold(SOURCE, PartitionCommit(5, ""), ["shares"], "likes", 0)


@pytest.mark.parametrize(("start", "offset"), [pytest.param(0, 0, id="earliest"), pytest.param(99, 5, id="latest")])
def test_reset_without_metadata_moves_no_other_fold_forward(start: int, offset: int) -> None:
    """The committed offset applies to every fold, even if the broker drops the metadata of the new commit as well."""
    left = without_fold(SOURCE, PartitionCommit(5, ""), FOLDS, "likes", start)

    assert left is not None
    assert (offset, {"shares": OffsetAndMetadata(5)}) == (left.offset, offsets_of(left, FOLDS))


def test_commit_of_a_newer_version_is_not_replaced() -> None:
    with pytest.raises(NewerFormatError, match="the commit of events-0 has format 99"):
        without_fold(SOURCE, PartitionCommit(5, "@99;likes and shares"), FOLDS, "likes", 0)
