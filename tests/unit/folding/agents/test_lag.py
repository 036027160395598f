"""The lag of each fold, over all partitions, from all that is known of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.fold import Fold
from streams_app.folding.agents.lag import READ_MS, PartitionEnds, lags

A, B, OTHER = TP("t", 0), TP("t", 1), TP("u", 0)


def fold(name: str = "f", **options: Any) -> Fold:
    return Fold(**{"name": name, "source": "t", "group_key": "a", "changed": "m", "quiet_period": timedelta(seconds=1), **options})


@pytest.mark.parametrize(("fence", "lag"), [(-1, 10), (4, 5), (8, 1), (9, 0), (12, 0)])
def test_lag_is_the_distance_beyond_the_fence(fence: int, lag: int) -> None:
    assert {"f": lag} == lags([fold()], {A: 10}, {A: 0}, {}, {("f", A): fence})


def test_lag_of_a_fold_covers_all_partitions_of_its_source() -> None:
    found = lags([fold()], {A: 10, B: 20, OTHER: 99}, {A: 0, B: 0, OTHER: 0}, {}, {("f", A): 9, ("f", B): 4})

    assert {"f": 15} == found


def test_folds_of_one_source_lag_by_their_own_fences() -> None:
    assert {"f": 1, "g": 10} == lags([fold("f"), fold("g")], {A: 10}, {A: 0}, {}, {("f", A): 8, ("g", A): -1})


def test_fold_without_state_lags_from_its_own_committed_offset() -> None:
    committed = {A: PartitionCommit(3, '{"f":7,"g":3}')}

    assert {"f": 3, "g": 7} == lags([fold("f"), fold("g")], {A: 10}, {A: 0}, committed, {})


def test_commit_without_metadata_applies_to_every_fold() -> None:
    assert {"f": 7} == lags([fold()], {A: 10}, {A: 0}, {A: PartitionCommit(3, "")}, {})


@pytest.mark.parametrize(("start", "lag"), [("earliest", 6), ("latest", 0)])
def test_new_fold_lags_from_its_initial_offset(start: str, lag: int) -> None:
    assert {"f": lag} == lags([fold(start=start)], {A: 10}, {A: 4}, {}, {})


def test_records_removed_by_retention_are_no_lag() -> None:
    assert {"f": 2} == lags([fold()], {A: 10}, {A: 8}, {}, {("f", A): 3})


def test_last_position_of_the_reader_counts_after_a_release() -> None:
    """The lag connection is queried once a second and waits for Redis, so the position of the reader is ahead of it."""
    ends = PartitionEnds()
    found = [
        ends.combined({A: 50}, {A: read}, now_ms, is_answering=is_answering)[A]
        for now_ms, read, is_answering in [
            (0, 40, True), (1, 100, True), (READ_MS, None, True), (READ_MS + 1, None, False), (READ_MS + 1, None, True),
        ]
    ]  # fmt: skip

    assert [50, 100, 100, 100, 50] == found
