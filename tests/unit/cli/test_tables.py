"""Tables as printed in terminals of several widths."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from streams_app.cli.groups import columns_of
from streams_app.cli.tables import fitted, print_fitted
from streams_app.codec import member_of
from streams_app.formatting import group_value
from streams_app.operations.listed_group import ListedGroup

KEYS = ["a", "[/x]", "[red]x[/red]", "a\nb", "\x1b[2J", "漢字" * 40, "account_" + "1234567890" * 30, 7, "7"]


def row(group: object = "a", fold: str = "account-metrics") -> ListedGroup:
    return ListedGroup(
        fold=fold, source="post-metric-updated", partition=3, group="unused", key=group_value(member_of((group,))),
        events=12_345_678, names=9_999, bytes=0, first_offset=0, last_offset=12_345_677, first_event_ms=1_699_999_999_000,
        last_event_ms=1_700_000_000_000, quiet_in_ms=3_599_000, hold_in_ms=86_400_000 + 11 * 3_600_000 + 59 * 60_000,
    )  # fmt: skip


def lines(table: Table, width: int) -> list[str]:
    out = StringIO()
    Console(file=out, width=width, force_terminal=True, color_system=None).print(table)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
@pytest.mark.parametrize("folds", [1, 2])
def test_group_list_is_aligned_at_every_width(width: int, folds: int) -> None:
    rows = [row(key, fold=f"fold-{number % folds}") for number, key in enumerate(KEYS)]
    printed = lines(fitted(columns_of(rows), width), width)

    assert 1 + len(rows) == len(printed)
    assert all(cell_len(line) <= width for line in printed), printed
    assert all("59 min 59 s" in line for line in printed[1:]), printed
    assert all(line.strip().isprintable() for line in printed)
    assert "\x1b" not in "".join(printed)


def test_long_key_is_shortened_and_no_column_dropped_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_fitted(columns_of([row("k" * 512), row("account_" + "0123456789" * 5)]))
    head, first, second = capsys.readouterr().out.splitlines()

    assert ["GROUP", "FOLD", "SOURCE", "EVENTS", "NAMES", "LAST EVENT", "QUIET IN", "HOLD IN"] == re.split(r"  +", head.strip())
    assert "…" in first.split()[0]
    assert len(first.rstrip()) < 250
    assert second.startswith("account_" + "0123456789" * 5 + " ")


def test_keys_are_shortened_in_the_middle_and_numbers_stay_whole_at_80_columns() -> None:
    head, first, second = lines(fitted(columns_of([row("account_" + "0123456789" * 5), row("b")]), 80), 80)

    assert ["GROUP", "SOURCE", "EVENTS", "NAMES", "QUIET IN", "HOLD IN"] == re.split(r"  +", head.strip())
    assert first.startswith("account_0123")
    assert "…" in first.split()[0]
    assert first.split()[0].endswith("456789")
    assert "12345678   9999  59 min 59 s  " in first
    assert second.startswith("b ")


def test_wide_terminal_shows_rows_unshortened() -> None:
    printed = lines(fitted(columns_of([row("account_" + "0123456789" * 5)]), 200), 200)

    assert "account_" + "0123456789" * 5 in printed[1]
    assert "2023-11-14 22:13:20Z" in printed[1]
    assert "account-metrics" in printed[1]


def test_two_folds_are_distinguishable_at_80_columns() -> None:
    printed = lines(fitted(columns_of([row("a" * 99, fold="first"), row("a" * 99, fold="second")]), 80), 80)

    assert "FOLD" in printed[0]
    assert ("first" in printed[1], "second" in printed[2]) == (True, True)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5), st.integers(20, 130))
def test_each_key_takes_one_line_with_any_characters(keys: list[str], width: int) -> None:
    printed = lines(fitted(columns_of([row(key) for key in keys]), width), width)

    assert 1 + len(keys) == len(printed)
    assert all(line.isprintable() and cell_len(line) <= width for line in printed)
