"""Rows of the page of a journal."""

from __future__ import annotations

import pytest

from streams_app.console.pages.journal import row_of_event
from streams_app.journal.reading.entries import Entry, Gap
from streams_app.operations.journal import key_event


def entry(**changed: object) -> Entry:
    given = {"cursor": "0-1", "at_ms": 1_000, "value": b"{}", "headers": (), "partition": 0, "offset": 1}
    return Entry(**(given | changed))  # type: ignore[arg-type]  # names and types of the fields


@pytest.mark.parametrize(("at_ms", "day"), [(0, "1970-01-01"), (-1, ""), (2**62, "")])
def test_time_that_is_no_time_has_no_day(at_ms: int, day: str) -> None:
    assert day == row_of_event(key_event(entry(at_ms=at_ms))).day


@pytest.mark.parametrize(
    ("changed", "kind", "value", "remark"),
    [
        ({"value": None}, "empty", "", ""),
        ({"value": b'{"size": 9}', "too_large": 2_000_000}, "empty", "", "too large to be kept: 2,000,000 bytes"),
        ({"value": b"\0\0", "decoded": {"a": 1}}, "json", '{\n  "a": 1\n}', ""),
        ({"value": b"\0\1", "undecoded": "no \u202e schema"}, "bytes", "0001", "not decoded: no \\u202e schema"),
    ],
)
def test_value_is_shown_with_what_is_missing(changed: dict[str, object], kind: str, value: str, remark: str) -> None:
    found = row_of_event(key_event(entry(**changed)))

    assert (kind, value, remark) == (found.kind, found.value, found.remark)


def test_gap_has_its_reason_in_words() -> None:
    found = row_of_event(key_event(Gap(4, 9, "retention", 0, "0-9")))

    assert (True, 4, 9, "the topic had removed them before a worker read them") == (
        found.is_gap, found.first, found.last, found.remark
    )  # fmt: skip
