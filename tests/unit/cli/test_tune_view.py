"""The table and the plot of a curve, at every width, with and without colors and Unicode characters."""

from __future__ import annotations

import re
from dataclasses import replace
from io import BytesIO, StringIO, TextIOWrapper

import pytest
from rich.cells import cell_len
from rich.console import Console

from streams_app.cli.tune_view import show
from streams_app.formatting import compact_duration, compact_size, duration_text, milliseconds, parse_duration, percentage
from streams_app.tuning.points import Curve, CurveSample, Point, Recommendation

WINDOWS_MS = [1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 150_000, 300_000, 900_000, 3_600_000, 6 * 3_600_000]


def curve(windows: list[int] | None = None, *, is_live: bool = False) -> Curve:
    """Return a curve of ten million events, whose ratio rises with each candidate."""
    points = []
    for number, quiet_ms in enumerate(windows or WINDOWS_MS):
        ratio = 1 - 0.5 / (1 + number)
        measurements = [None] * 7 if is_live else [quiet_ms * n for n in (2, 5, 9, 3, 10)] + [1_234_567, 123_456_789]
        points.append(Point(quiet_ms, round(10_000_000 * (1 - ratio)), ratio, *measurements))
    return Curve("account-metrics", 10_000_000, 1_234_567, 1_700_000_000_000, 1_700_086_400_000, tuple(points))


def shown(one: Curve, width: int, *, configured_ms: int = 900_000, recommended_ms: int = 60_000, colour: bool = False) -> str:
    out = StringIO()
    console = Console(file=out, width=width, force_terminal=colour, color_system="standard" if colour else None)
    show(one, Recommendation(recommended_ms, "It is the knee: " + "and so on, " * 20), configured_ms, console)
    return out.getvalue()


@pytest.mark.parametrize("width", [50, 60, 80, 100, 120, 200])
def test_lines_fit_the_terminal_width_and_numbers_are_not_truncated(width: int) -> None:
    text = shown(curve(), width)
    header = next(at for at, line in enumerate(text.splitlines()) if line.split()[:2] == ["X", "RECORDS"])
    rows = text.splitlines()[header + 1 : header + 1 + len(WINDOWS_MS)]

    assert [line for line in text.splitlines() if cell_len(line.rstrip()) > width] == []
    assert "…" not in text
    assert [duration_text(quiet_ms) for quiet_ms in WINDOWS_MS] == [row.lstrip("●○ ").split()[0] for row in rows]


def test_all_figures_are_shown_at_80_columns() -> None:
    lines = shown(curve(), 80).splitlines()

    assert [
        "account-metrics: 10,000,000 events of 1,234,567 groups",
        "2023-11-14 22:13:20Z to 2023-11-15 22:13:20Z (24 h)",
    ] == lines[:2]
    assert ["X", "RECORDS", "RATIO", "P50", "P95", "P99", "PEAK", "OPEN", "REDIS"] == lines[3].split()
    assert ["1s", "5,000,000", "50.00%", "2s", "5s", "9s", "1,234,567", "123", "MB"] == lines[4].split()


def test_recommended_and_configured_candidates_are_marked_in_table_and_plot() -> None:
    text = shown(curve(), 80)

    assert ["● 1m", "○ 15m"] == [re.sub(" +", " ", line[:7]).strip() for line in text.splitlines() if re.match("[●○] +[0-9]", line)]
    assert "● recommended   ○ configured now" in text
    # Once in the row, once in the legend, once in each of two panels.
    assert (4, 4) == (text.count("●"), text.count("○"))


def test_configured_candidate_that_is_also_recommended_is_announced() -> None:
    text = shown(curve(), 80, configured_ms=60_000)

    assert "● recommended, and configured now\n" in text
    assert "○" not in text


def test_recommendation_is_a_settings_line_followed_by_its_reason() -> None:
    lines = shown(curve(), 80).splitlines()
    at = lines.index('recommended: quiet_period = "1m"')

    assert lines[at + 1].startswith("  It is the knee: and so on,")


def test_panels_stand_side_by_side_on_a_wide_terminal() -> None:
    beside = [line for line in shown(curve(), 80).splitlines() if "folding ratio" in line]
    below = [line for line in shown(curve(), 60).splitlines() if "folding ratio" in line]

    assert (True, False) == ("latency" in beside[0], "latency" in below[0])


def test_output_without_colours_has_no_escape_sequence() -> None:
    assert "\x1b" not in shown(curve(), 80)
    assert "\x1b" in shown(curve(), 80, colour=True)


def test_terminal_without_unicode_gets_ascii() -> None:
    out = TextIOWrapper(BytesIO(), encoding="ascii", errors="strict")
    show(curve(), Recommendation(60_000, "so"), 900_000, Console(file=out, width=80))
    out.flush()
    text = out.buffer.getvalue().decode("ascii")

    assert "* recommended   o configured now" in text
    assert "....." in text


def test_curve_without_latencies_omits_their_columns_and_panel() -> None:
    text = shown(curve(is_live=True), 80)

    assert ["X", "RECORDS", "RATIO"] == text.splitlines()[3].split()
    assert "latency" not in text
    assert "folding ratio" in text


@pytest.mark.parametrize("windows", [[60_000], [59_000, 60_000], [60_000, 60_001]])
def test_few_candidates_are_shown_too(windows: list[int]) -> None:
    assert "● 1m" in re.sub(" +", " ", shown(curve(windows), 80))


def test_axis_labels_both_ends_between_two_round_durations() -> None:
    lines = shown(curve([61_000, 75_000, 110_000]), 80).splitlines()
    below = lines[next(at for at, row in enumerate(lines) if "└" in row) + 1]

    assert ["61s", "110s"] * 2 == below.split()


def test_axis_labels_both_ends_between_two_round_latencies() -> None:
    points = tuple(Point(quiet_ms, 5, 0.5, 1, 61_000 + quiet_ms // 10, 5, 1, 5, 1, 1) for quiet_ms in (1_000, 10_000))
    lines = shown(Curve("f", 10, 1, 0, 5, points), 80).splitlines()

    assert ["1m02s", "1m01s"] == [label for row in lines if "│" in row and (label := row.split("│")[1][-7:].strip())]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (0.0012, "a sample: 5,000 groups (25.0%), chosen by hash, with 2,500,000 events; standard error of the ratio 0.12%"),
        (None, "the beginning of the range, 2,500,000 events, as a few groups have nearly all of them"),
    ],
)
def test_precision_of_a_sample_is_shown_below_the_table(error: float | None, expected: str) -> None:
    assert expected in " ".join(shown(replace(curve(), sample=CurveSample(0.25, 2_500_000, 5_000, error)), 200).split())


def test_single_event_is_shown() -> None:
    one = Curve("f", 1, 1, 5, 5, tuple(Point(at, 1, 0.0, at, at, at, at, at, 1, 100) for at in WINDOWS_MS))

    assert "f: 1 event of 1 group\n" in shown(one, 80)


# Text


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [
        (1, "1ms"),
        (1_000, "1s"),
        (1_500, "1.5s"),
        (90_000, "90s"),
        (900_000, "15m"),
        (21_600_000, "6h"),
        (86_400_000, "1d"),
        (61_001, "61001ms"),
    ],
)
def test_candidate_is_formatted_as_the_settings_accept_it(span_ms: int, text: str) -> None:
    assert (text, span_ms) == (duration_text(span_ms), milliseconds(parse_duration(text)))


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [
        (None, "-"), (0, "0ms"), (999, "999ms"), (1_000, "1s"), (1_234, "1.2s"), (12_345, "12s"), (60_000, "1m"),
        (842_000, "14m02s"),        (3_600_000, "1h"), (20_400_000, "5h40m"), (270_000_000, "3d03h"),
    ],
)  # fmt: skip
def test_latency_takes_six_characters(span_ms: int | None, text: str) -> None:
    assert text == compact_duration(span_ms)


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.0, "0.0%"), (0.941, "94.1%"), (0.9964, "99.64%"), (0.99998, "99.998%"), (1.0, "100.0%")]
)
def test_share_just_below_all_is_not_rounded_to_100_percent(ratio: float, text: str) -> None:
    assert text == percentage(ratio)


@pytest.mark.parametrize(
    ("count", "text"), [(None, "-"), (0, "0 B"), (999, "999 B"), (1_200, "1.2 kB"), (123_456_789, "123 MB"), (2 * 10**9, "2.0 GB")]
)
def test_size_is_formatted_with_three_digits(count: int | None, text: str) -> None:
    assert text == compact_size(count)
