"""A dead letter in words: the field that was wrong, where it is in the event, and what to do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import orjson
import pytest

from streams_app.console.pages.dead_letters import commands_for, failing_path, marked_lines
from streams_app.console.pages.topic import SLICES, sliced
from streams_app.fold import Fold
from streams_app.operations.dead_letter import ListedDeadLetter
from streams_app.reasons import ADVICE, REASONS

FOLD = Fold(
    name="f", source="s", output="o", dead_letters="d", group_key=("account.id", "day"), changed="metrics",
    quiet_period=timedelta(seconds=1), max_hold=timedelta(seconds=9),
)  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "detail", "path"),
    [
        ("no-group", "account.id is missing or null, not a string, a number or a boolean", ("account", "id")),
        ("no-group", "'day' is an integer beyond 2^53", ("day",)),
        ("no-group", "the record has no key", ()),
        ("no-changed", "'metrics' is missing or null, not an object, an array or a string", ("metrics",)),
        ("no-changed", "an item of 'metrics' is not a string", ("metrics",)),
        ("no-value", "'likes' is a text, and its sum needs a number", ("metrics", "likes")),
        ("too-many-names", "12 names, the limit is 10", ("metrics",)),
        ("not-valid", "Expected `int`, got `str` - at `$.order.items[3].id`", ("order", "items", 3, "id")),
        ("not-json", "unexpected character: line 1 column 2 (char 1)", ()),
    ],
)
def test_failing_field_is_found_in_the_detail(reason: str, detail: str, path: tuple[Any, ...]) -> None:
    assert path == failing_path(reason, detail, FOLD)


def test_detail_of_another_component_names_no_field_of_a_fold() -> None:
    assert () == failing_path("no-group", "account.id is missing", None)


@pytest.mark.parametrize(
    ("path", "marked", "is_absent"),
    [
        (("a", 1, "b"), ['      "b": 2'], False),
        (("a",), ['  "a": ['], False),
        (("a", 1, "c"), ["    {"], True),
        (("z",), ["{"], True),
        (("a", 9), ['  "a": ['], True),
        ((), [], False),
    ],
)
def test_failing_field_is_marked_or_what_it_would_be_in(path: tuple[Any, ...], marked: list[str], is_absent: bool) -> None:
    value = orjson.dumps({"a": [1, {"b": 2}], "c": "<b>"})
    lines, found = marked_lines(value, path)

    assert lines is not None
    assert (marked, is_absent) == ([line.text for line in lines if line.is_failing], found)
    assert orjson.loads(value) == orjson.loads("\n".join(line.text for line in lines))


@pytest.mark.parametrize("value", [None, b"", b"{", b"\xff", b'"' + b"x" * 20_000 + b'"', orjson.dumps(list(range(400)))])
def test_value_that_cannot_be_laid_out_has_no_lines(value: bytes | None) -> None:
    assert marked_lines(value, ())[0] is None


def test_deep_value_ends_in_an_ellipsis() -> None:
    lines, _ = marked_lines(b"[" * 900 + b"]" * 900, ())

    assert lines is not None
    assert ("…", 81) == (lines[40].text.strip(), len(lines))


@pytest.mark.parametrize("times", [[5], [5, 5], [0, 10, 20, 39, 40]])
def test_slices_have_every_dead_letter(times: list[int]) -> None:
    found = sliced(times, min(times), max(times))

    assert (SLICES, len(times)) == (len(found), sum(found))


def test_event_that_cannot_be_replayed_has_no_command_for_it() -> None:
    headers = {"reason": "no-group", "source-topic": "s", "source-partition": "2", "source-offset": "7"}
    whole = ListedDeadLetter(0, 1, None, b"{}", 5, headers)
    cut = ListedDeadLetter(0, 1, None, None, 5, headers | {"value-bytes-not-kept": "9"})

    assert [
        "streams-app dead-letters list --fold f --offset 2:7",
        "streams-app dead-letters replay --fold f --offset 2:7 --dry-run",
    ] == [*commands_for(whole, "fold f")]
    assert ["streams-app dead-letters list --fold f --offset 2:7"] == [*commands_for(cut, "fold f")]
    assert [] == [*commands_for(whole, "fold $(rm)")]


def test_every_reason_has_an_advice() -> None:
    assert list(REASONS) == list(ADVICE)
