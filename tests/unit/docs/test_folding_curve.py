"""The worked example of docs/explained/folding-curve.md, computed."""

from __future__ import annotations

import re
from pathlib import Path

from streams_app.folding.core.closing import Bounds
from streams_app.tuning.columns import Columns
from streams_app.tuning.replay import curve_of

PAGE = (Path(__file__).parents[3] / "docs" / "explained" / "folding-curve.md").read_text("utf-8")


def rows(name: str) -> list[list[str]]:
    """Return the rows of the table between two comments."""
    table = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", PAGE, re.DOTALL)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()[2:]]


STEPS = rows("article")
EVENTS = [(int(second), group) for what, second, group, *_ in STEPS if what.startswith("post_")]


def zadd_returns() -> list[int]:
    """Return what a sorted set returns for the steps of the example, in order."""
    open_groups: set[str] = set()
    returned = []
    for what, _, group, *_ in STEPS:
        if what.startswith("post_"):
            returned.append(int(group not in open_groups))
            open_groups.add(group)
        else:
            open_groups.remove(group)
    return returned


def records(quiet_seconds: int) -> int:
    columns = Columns(now_ms=100_000)
    columns.add(0, [(at, 1_000 * second, group.encode(), {}) for at, (second, group) in enumerate(EVENTS)])
    return curve_of("f", columns, Bounds(1, 10**9, sessions=True), [1_000 * quiet_seconds]).points[0].records


def test_redis_replies_match_the_example() -> None:
    assert [int(row[3]) for row in STEPS if row[3]] == zadd_returns()
    assert len(EVENTS) == len(zadd_returns()) == 6


def test_ratios_match_the_example() -> None:
    events, ones, zeros, groups = len(EVENTS), zadd_returns().count(1), zadd_returns().count(0), len({group for _, group in EVENTS})
    computed = [zeros / (events - ones), zeros / events, 1 - records(5) / events, 1 - records(10) / events]

    assert [f"{ratio:.0%}".replace("%", " %") for ratio in computed] == [row[3] for row in rows("ratios")]
    assert [
        f"{zeros} / ({events} - {ones})",
        f"{zeros} / {events}",
        f"1 - {records(5)} / {events}",
        f"1 - {groups} / {events}",
    ] == [row[2] for row in rows("ratios")]


def test_documented_windows_make_the_documented_numbers_of_records() -> None:
    assert (4, 2) == (records(5), records(10))
    assert "X = 5 s makes the four records of the article and X = 10 s the two" in PAGE


def test_exact_formula_yields_one_for_any_stream() -> None:
    returned = zadd_returns() * 7 + [1, 1, 0]

    assert returned.count(0) / (len(returned) - returned.count(1)) == 1
