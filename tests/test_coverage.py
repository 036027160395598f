"""The table of `make coverage`."""

from __future__ import annotations

from tests.checkout.coverage import table


def numbers(statements: int, missed: int, branches: int, missed_branches: int) -> dict[str, int]:
    return {
        "num_statements": statements, "missing_lines": missed, "num_branches": branches, "missing_branches": missed_branches,
    }  # fmt: skip


def test_room_has_the_sum_of_its_modules_and_the_least_covered_one_comes_first() -> None:
    lines = table({
        "streams_app/live/core/state.py": numbers(1_000, 0, 200, 0), "streams_app/live/hub/hub.py": numbers(600, 100, 200, 100),
        "streams_app/clock.py": numbers(10, 5, 0, 0), "streams_app/tuning/__init__.py": numbers(0, 0, 0, 0),
    })  # fmt: skip

    assert [
        ["package", "statements", "missed", "branches", "missed", "covered"], ["clock", "10", "5", "0", "0", "50.0%"],
        ["live", "1,600", "100", "400", "100", "90.0%"], ["tuning", "0", "0", "0", "0", "100.0%"],
        ["all", "1,610", "105", "400", "100", "89.8%"],
    ] == [line.split() for line in lines]  # fmt: skip
