"""Bisection of a batch that a database rejects as a whole finds the rejected changes."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from streams_app.read_store.core.bisect_rejected import bisect_rejected
from streams_app.read_store.core.merge import Cell, CellChange

CHANGES = [CellChange(Cell("f", f"g{number // 5:03}", f"n{number % 5}"), 1, number) for number in range(500)]
"""A hundred rows of five."""


def found(is_rejected: Callable[[Collection[object]], bool]) -> tuple[list[object], int]:
    """Return the rejected values, and how often the database was queried."""
    bisection, attempts = bisect_rejected(CHANGES), 1
    part = next(bisection)
    while True:
        try:
            part = bisection.send("no" if is_rejected([change.value for change in part]) else None)
            attempts += 1
        except StopIteration as ended:
            return [change.value for change in CHANGES if change.cell in ended.value], attempts


@pytest.mark.parametrize("wrong", [set(), {0}, {499}, {17, 18}, set(range(500))])
def test_changes_rejected_alone_are_found(wrong: set[int]) -> None:
    assert sorted(wrong) == found(lambda values: bool(wrong & set(values)))[0]


def test_one_rejected_change_of_five_hundred_is_found_with_two_attempts_for_each_halving() -> None:
    values, attempts = found(lambda values: 77 in values)

    assert [77] == values
    assert attempts <= 1 + 2 * 10


def test_changes_rejected_only_together_are_the_smallest_part_of_their_row() -> None:
    assert [5, 6, 7, 8, 9] == found(lambda values: {5, 7} <= set(values))[0]
    assert [5, 6] == found(lambda values: {5, 6} <= set(values))[0]


def test_bisection_without_changes_finds_none() -> None:
    bisection = bisect_rejected([])

    assert [] == next(bisection)
    with pytest.raises(StopIteration) as ended:
        bisection.send(None)
    assert {} == ended.value.value
