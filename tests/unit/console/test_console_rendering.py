"""Charts, values and times as they are drawn."""

from __future__ import annotations

import pytest

from streams_app.console.pages.fold import CurvePoint
from streams_app.console.pages.group import axis, heights
from streams_app.console.pages.rendering import (
    area_path,
    countdown,
    curve,
    figure,
    line_path,
    moment,
    number,
    points_text,
    render,
    top_of,
)


@pytest.mark.parametrize(
    ("points", "top"), [([], 1), ([None], 1), ([0], 1), ([3], 5), ([0.02, 0.011], 0.02), ([1_001], 2_000), ([250], 250)]
)
def test_axis_ends_at_the_next_round_number(points: list[float | None], top: float) -> None:
    assert top == pytest.approx(top_of(points))


def test_line_has_gaps_where_values_are_unknown() -> None:
    points = [0, 10, None, 5]

    assert "M0.0 10.0L10.0 0.0M30.0 5.0" == line_path(points, 10, 30, 10)
    assert 2 == area_path(points, 10, 30, 10).count("Z")
    assert "" == line_path([None, None], 1, 30, 10) == area_path([], 1, 30, 10)


def test_curve_of_one_candidate_is_a_point() -> None:
    drawn = curve([CurvePoint(3_000, 0.5, 10, True, True, None, None, None)], 100, 50)

    assert [(0, 25, "3s: 50.0%", "present recommended")] == drawn.points


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\N{EN DASH}"),
        (0, "0"),
        (0.123, "0.12"),
        (3.21, "3.2"),
        (12.6, "13"),
        (1_512, "1,512"),
        (123_456, "123k"),
        (2.5e6, "2.5M"),
    ],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert text == number(value)


def test_values_have_their_unit() -> None:
    texts = [
        str(figure(value, unit))
        for value, unit in ((0.973, "share"), (1.44, "seconds"), (0, "seconds"), (0.0123, "seconds"), (12, "events/s"))
    ]

    assert [">97.3<", ">1.4<", ">0<", ">12.3<", ">12<"] == [text[text.index(">") : text.index("</") + 1] for text in texts]
    assert ["%", "s", "s", "ms", "/s"] == [text.removesuffix("</span>").rpartition(">")[2] for text in texts]


def test_times_are_in_utc_and_exact_for_javascript() -> None:
    assert (
        '<time datetime="2023-11-14T22:13:20.123Z" title="2023-11-14T22:13:20.123Z">2023-11-14 22:13:20Z</time>'
        == moment(1_700_000_000_123)
    )  # fmt: skip
    assert "\N{EN DASH}" == moment(None) == moment(-1)
    assert "10000000000000000 ms" == moment(10**16)


def test_countdown_ends_with_now() -> None:
    assert '<span class="countdown" data-until="5000">4.0 s</span>' == countdown(5_000, 1_000)
    assert ">now<" in countdown(5_000, 5_001)


def test_points_for_javascript_have_four_digits() -> None:
    assert "1235,,0.1235,0" == points_text([1234.5678, None, 0.123456, 0])


def test_events_at_the_same_position_are_one_higher_bar() -> None:
    assert [(1.0, 1.0), (0.675, 1.0)] == [(round(height, 3), 1.0) for _, height in heights([1.0, 1.2, 500.0])]


def test_axis_of_a_time_line_has_round_distances_from_now() -> None:
    assert ["20 s ago", "10 s ago", "now", "in 10 s"] == [tick.text for tick in axis(0, 40_000, 25_000)]
    assert [] == axis(0, 10**15, 5)


def test_text_of_errors_is_no_markup() -> None:
    assert "&lt;script&gt;" in render("error.html", status=404, text="There is no <script>")
