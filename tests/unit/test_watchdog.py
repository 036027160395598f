"""When a partition counts as stuck."""

from __future__ import annotations

import pytest
from faust.types import TP

from streams_app.watchdog import Progress

A, B = TP("events", 0), TP("events", 1)


def test_a_partition_with_more_to_read_that_stands_still_for_a_minute_is_stuck() -> None:
    progress = Progress(60_000)

    assert progress.observe(0, {A: 10}, {A: 5}) is None
    assert progress.observe(59_999, {A: 20}, {A: 5}) is None
    assert A == progress.observe(60_000, {A: 30}, {A: 5})


@pytest.mark.parametrize("end", [5, 4])
def test_a_partition_read_to_its_end_is_not_stuck(end: int) -> None:
    progress = Progress(60_000)

    assert [None] * 3 == [progress.observe(at, {A: end}, {A: 5}) for at in (0, 60_000, 120_000)]


def test_the_minute_begins_when_there_is_something_to_read() -> None:
    progress = Progress(60_000)
    progress.observe(0, {A: 5}, {A: 5})

    assert progress.observe(100_000, {A: 5}, {A: 5}) is None
    assert progress.observe(110_000, {A: 6}, {A: 5}) is None
    assert progress.observe(159_999, {A: 6}, {A: 5}) is None
    assert A == progress.observe(160_000, {A: 6}, {A: 5})


def test_one_that_moves_does_not_excuse_another() -> None:
    progress = Progress(60_000)
    stuck = [progress.observe(at, {A: 99, B: 99}, {A: 5, B: at // 10_000}) for at in range(0, 70_000, 10_000)]

    assert [None] * 6 + [A] == stuck


def test_a_partition_that_was_revoked_or_explained_begins_anew() -> None:
    progress = Progress(60_000)
    progress.observe(0, {A: 10}, {A: 5})
    progress.observe(30_000, {}, {})
    assert progress.observe(60_000, {A: 10}, {A: 5}) is None
    progress.forget()
    assert progress.observe(120_000, {A: 10}, {A: 5}) is None
    assert A == progress.observe(180_000, {A: 10}, {A: 5})
