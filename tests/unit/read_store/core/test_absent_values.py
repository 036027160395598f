"""Source that has no value for anything that it is asked for."""

from __future__ import annotations

import pytest

from streams_app.operations.verify_result import VerifyResult, summary
from streams_app.read_store.core.absent_values import MIN_GROUPS, AbsentValues
from streams_app.read_store.core.merge import Cell, CellChange, StoredCell
from streams_app.read_store.core.query_rows import with_values


def asked(*groups: str, names: tuple[str, ...] = ("likes",)) -> list[CellChange]:
    return [CellChange(Cell("f", group, name), 1) for group in groups for name in names]


def reports(answers: list[list[CellChange]]) -> list[str | None]:
    absent = AbsentValues()
    return [absent.observe(answer) for answer in answers]


@pytest.mark.parametrize("group", ["a", 7, "7"])
def test_query_of_other_names_is_reported_with_both_once(group: str | int) -> None:
    answer = with_values(asked(str(group), names=("likes", "shares")), [(group, "total", 3), (group, "n_likes", 1)], "sql")
    first, second = reports([answer, answer])

    assert first is not None
    assert "1 group (likes, shares), but other names (n_likes, total)" in first
    assert second is None


def test_query_without_rows_is_reported_after_some_groups() -> None:
    found = reports([asked("a"), asked("a"), asked("b", "c"), asked("d")])

    assert MIN_GROUPS == 3
    assert [False, False, True, False] == [one is not None for one in found]


def test_query_that_returned_a_value_is_not_reported() -> None:
    some = with_values(asked("a", "b"), [("a", "likes", 1), ("b", "total", 3)], "sql")
    deleted = with_values(asked("a"), [("a", "shares", 1)], "sql")

    assert [None] * 3 == reports([some, deleted, asked("a", "b", "c", "d")])


def test_deleted_groups_are_not_reported() -> None:
    gone = with_values(asked("a", "b", "c"), [(group, None, None) for group in "abc"], "sql")

    assert [None] == reports([gone])
    assert {()} == {change.returned for change in gone}


def test_summary_of_a_comparison_has_the_share_of_null_by_name() -> None:
    done = VerifyResult(cells=4, records=4)
    likes = {Cell("f", group, "likes"): StoredCell(1, value) for group, value in (("a", None), ("b", None))}
    done.count_nulls(likes)
    only_null = summary(done, "dashboard")
    done.count_nulls({Cell("f", group, "shares"): StoredCell(1, value) for group, value in (("a", 1), ("b", 2), ("c", None))})
    some_null = summary(done, "dashboard")

    assert "likes 100 % (2 of 2)" in only_null[1]
    assert "no value at all" in only_null[2]
    assert "likes 100 % (2 of 2), shares 33 % (1 of 3)" in some_null[1]
    assert 2 == len(some_null)


def test_summary_of_a_comparison_without_null_says_nothing_of_it() -> None:
    done = VerifyResult(cells=1, records=1)
    done.count_nulls({Cell("f", "a", "likes"): StoredCell(1, 0)})

    assert 1 == len(summary(done, "dashboard"))
