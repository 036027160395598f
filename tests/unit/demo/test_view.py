"""The view of the demo, rendered as in a terminal."""

from __future__ import annotations

import errno
import re
import shlex
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType

from streams_app.demo.view import Outcome, Snapshot, View, check_lines, check_text, describe, story_lines, table_lines

LABELS = ["raw events", "open groups", "folded records", "folding ratio", "read-store writes", "subscriber", "journal"]
NUMBERS = [
    "1,234,567   (12,345 a second, 65,432 not yet folded)", "4,321", "9,876", "99.0%", "55,555   (95.5% saved",
    "9,870 recomputed   (1,234 attempts failed and retried)", "1,234,500 events   (246.9 MB received, 12.3 MB kept)",
]  # fmt: skip
NAMES = ["likes", "shares", "comments", "impressions", "saves", "clicks"]


def record(key: Any = "account_1", names: list[str] = NAMES, events: int = 12_345) -> dict[str, Any]:
    return {"account_id": key, "metrics": names, "fold": {"events": events, "reason": "max_events"}}


def view(width: int) -> tuple[View, StringIO]:
    out = StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    return View(console, group_field="account_id", changed="metrics"), out


def snapshot(latest: list[dict[str, Any]]) -> Snapshot:
    return Snapshot(
        123_000, "load", 1_234_567, 12_345.4, 4_321, 65_432, 9_876, 987_654, 55_555, latest, 9_870, 1_234, 1_234_500,
        246_913_400, 12_345_678,
    )  # fmt: skip


def lines(width: int, latest: list[dict[str, Any]]) -> list[str]:
    shown, out = view(width)
    picture: RenderableType = shown.picture(snapshot(latest))
    shown.console.print(picture)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_labels_and_numbers_stay_in_place_when_examples_appear(width: int) -> None:
    printed = lines(width, [record(), record("account_" + "1234567890" * 9), record("[red]x[/red]", ["[/y]"])])

    assert 12 == len(printed)
    assert all(cell_len(line) <= width for line in printed), printed
    assert LABELS == [line.split("  ")[0] for line in printed[1:8]]
    assert [] == [number for number, line in zip(NUMBERS, printed[1:8], strict=True) if number not in line]
    assert 3 == sum("12,345 events in one record" in line for line in printed[9:])


def test_example_at_80_columns_shortens_its_names_and_the_middle_of_its_key() -> None:
    markup, long, usual = lines(80, [record(), record("account_" + "1234567890" * 9), record("[red]x", ["[/y]"])])[9:]

    assert "account_1: likes, shares, …  (12,345 events in one record, reason max_events)" == usual.strip()
    assert long.startswith("accoun…67890: ")
    assert "[red]x: [/y]  (12,345 events in one record, reason max_events)" == markup.strip()


@pytest.mark.parametrize("latest", [[], [record("account_" + "1234567890" * 9)]], ids=["no record", "a long key"])
def test_story_of_a_running_demo_is_five_lines_that_fit_into_80_columns(latest: list[dict[str, Any]]) -> None:
    shown, out = view(80)
    shown.console.print(shown.story(snapshot(latest)))

    printed = [line.rstrip() for line in out.getvalue().splitlines()]
    assert [
        "123 s: 1,234,567 events arrived, 12,345 a second",
        "9,876 folded records (folding ratio 99.0%); 4,321 groups are open",
        "55,555 values written to the read store, 95.5% fewer than events",
        "9,870 records processed by the subscriber; 1,234 failed attempts retried",
    ] == printed[:4]
    assert 5 == len(printed)
    assert all(cell_len(line) <= 80 for line in printed)


@given(st.text() | st.integers(-(2**53), 2**53), st.lists(st.text(), min_size=1), st.integers(0, 10**12), st.integers(60, 130))
def test_any_example_is_one_printable_line(key: object, names: list[str], events: int, width: int) -> None:
    text = describe(record(key, names, events), "account_id", "metrics", width)

    assert text.isprintable()
    assert cell_len(text) <= width
    assert f"({events:,} event" in text


def test_markup_in_a_step_is_printed_unchanged() -> None:
    shown, out = view(80)
    shown.step("[red]x[/red] [/y] :smile:")

    assert "[red]x[/red] [/y] :smile:\n" == out.getvalue()


def test_step_is_broken_between_words_on_a_terminal_and_unchanged_in_a_file() -> None:
    text = "check passed       216 accounts: the read store equals a recomputation from all events\n\n  live page   " + "x" * 90
    shown, terminal = view(60)
    file = StringIO()
    shown.step(text)
    View(Console(file=file, width=60), group_field="account_id", changed="metrics").step(text)

    assert [
        "check passed       216 accounts: the read store equals a",
        "                   recomputation from all events",
        "",
        "  live page",
        "              " + "x" * 90,
    ] == terminal.getvalue().splitlines()
    assert f"{text}\n" == file.getvalue()


COMMAND = ["streams-app", "journal", "read", "a b", "--follow", "--config", "/tmp/" + "x" * 40]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_command_can_be_copied_at_any_width(width: int) -> None:
    shown, out = view(width)
    shown.command("  one account ", COMMAND, "  (in a second terminal)")
    copied = out.getvalue().replace("  one account ", "").replace("(in a second terminal)", "")

    assert COMMAND == shlex.split(copied.replace("\\\n", ""))  # as a shell reads it
    assert all(cell_len(line) <= max(width, 49) for line in out.getvalue().splitlines())


def test_command_in_a_file_is_one_line() -> None:
    file = StringIO()
    View(Console(file=file, width=20), group_field="account_id", changed="metrics").command("run ", COMMAND, "  (now)")

    assert f"run {shlex.join(COMMAND)}  (now)\n" == file.getvalue()


@pytest.mark.parametrize(("is_verbose", "expected"), [(False, 1), (True, 2)])
def test_status_lines_in_a_file_fit_into_80_columns(is_verbose: bool, expected: int) -> None:
    out = StringIO()
    shown = View(Console(file=out, width=80), group_field="account_id", changed="metrics", is_verbose=is_verbose)
    shown.show(Snapshot(86_400_000, "silence", 1_234_567, 0, 4_321, 0, 98_765, 987_654, 155_555, [], 98_765, 7, 1, 1, 123_456_789))

    assert expected == len(out.getvalue().splitlines())
    assert [] == [line for line in out.getvalue().splitlines() if len(line) > 80]


def test_rate_of_a_line_covers_the_time_since_the_previous_line() -> None:
    out = StringIO()
    shown = View(Console(file=out, width=80), group_field="account_id", changed="metrics")
    for elapsed_ms, phase, events, rate in ((2_000, "load", 3_140, 854), (3_000, "load", 4_000, 900), (4_000, "silence", 4_316, 0)):
        shown.show(Snapshot(elapsed_ms, phase, events, rate))

    assert ["3,140 ( 1,570/s)", "4,316 (   588/s)"] == re.findall(r"events +([\d,]+ \([^)]*/s\))", out.getvalue())


class ClosedTerminal(StringIO):
    """Accepts output until it is closed, as the kernel's side of a terminal does."""

    is_gone = False

    def write(self, text: str) -> int:
        if self.is_gone:
            raise OSError(errno.EIO, "Input/output error")
        return super().write(text)


def test_closed_terminal_does_not_hide_the_reason_for_the_end() -> None:
    terminal = ClosedTerminal()
    view = View(Console(file=terminal, width=80, force_terminal=True), group_field="account_id", changed="metrics")
    with pytest.raises(KeyboardInterrupt), view.running():
        view.show(Snapshot(latest=[record()]))
        terminal.is_gone = True
        raise KeyboardInterrupt


OUTCOME = Outcome(
    Snapshot(elapsed_ms=20_000, events=1_234_567, records=9_876, events_folded=1_234_567, values_written=55_555),
    "tansu; valkey; one worker", redelivered=0, dead_letters=0, done=9_876, retried=1_234, accounts=500, values=3_000,
)  # fmt: skip


def test_story_is_three_sentences_and_a_check_of_80_columns() -> None:
    story = [*story_lines(OUTCOME), check_text(1_234_567)]

    assert [
        "",
        "1,234,567 events became 9,876 folded records (folding ratio 99.2%).",
        "The read store wrote 55,555 values; one for each event would have been 1,234,567.",
        "The subscriber processed 9,876 records; 1,234 failed attempts were retried.",
        "check passed: the read store equals a recomputation from all 1,234,567 events",
    ] == story
    assert all(len(line) <= 81 for line in story)


def test_story_names_dead_letters() -> None:
    assert " and 5 dead letters (" in story_lines(replace(OUTCOME, dead_letters=5))[1]


OUTCOME_LABELS = "raw events,folded records,folding ratio,read-store writes,subscriber,dead letters,measured on,check passed"


def test_table_has_every_figure() -> None:
    lines = [*table_lines(OUTCOME), *check_lines(OUTCOME)]

    assert OUTCOME_LABELS.split(",") == [line.split("  ")[0] for line in lines if line and not line.startswith(" ")]
