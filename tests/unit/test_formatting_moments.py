"""Times as people and programs write them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from streams_app.formatting import moment_ms, parse_moment

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("value", "at_ms"),
    [
        (1_700_000_000, NOW_MS), (NOW_MS, NOW_MS), (99_999_999_999, 99_999_999_999_000), (100_000_000_000, 100_000_000_000),
        ("1700000000.5", NOW_MS + 500), ("20231114", 1_699_920_000_000), ("2023-11-14T22:13:20+00:00", NOW_MS),
        (None, None), (True, None), ("", None), ({}, None), (-1, None), (1e15, None), (float("nan"), None), ("1e9", None),
        ("0001-01-01T00:00:00+14:00", None),
    ],
)  # fmt: skip
def test_value_is_a_moment_or_none(value: Any, at_ms: float | None) -> None:
    assert at_ms == moment_ms(value)


@pytest.mark.parametrize("at_ms", [1_001, 2_003, 999_999, 1_009_000_007, NOW_MS + 1, NOW_MS + 7, NOW_MS + 999])
def test_moment_in_seconds_is_exact_to_the_millisecond(at_ms: int) -> None:
    iso = f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03}"

    assert [at_ms] * 3 == [moment_ms(at_ms / 1000), moment_ms(iso), moment_ms(f"{iso}999+00:00")]


def test_every_millisecond_of_the_first_seconds_is_recognized_in_seconds() -> None:
    assert [] == [at_ms for at_ms in range(20_000) if moment_ms(at_ms / 1000) != at_ms]


def test_moment_before_1970_is_rejected_as_such() -> None:
    with pytest.raises(ValueError, match="is not a time, or is before 1970"):
        parse_moment("1969-07-20", NOW_MS)


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("-1h", NOW_MS - 3_600_000),
        ("1h", NOW_MS - 3_600_000),
        ("-100000d", 0),
        (str(NOW_MS), NOW_MS),
        ("2023-11-14", 1_699_920_000_000),
    ],
)
def test_moment_is_parsed_from_a_command_line(text: str, at_ms: int) -> None:
    assert at_ms == parse_moment(text, NOW_MS)


@pytest.mark.parametrize("text", ["", "-", "soon", "-5", "1e400", "0001-01-01"])
def test_invalid_moment_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        parse_moment(text, NOW_MS)
