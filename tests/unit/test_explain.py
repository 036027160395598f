"""What is told about a group that has not been emitted, and how times are written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app import Fold
from streams_app.codec import member_of
from streams_app.operating.explain import Found, describe, members_of
from streams_app.operating.groups import Place
from streams_app.operating.text import shown_group
from streams_app.words import counted, span, time_text

NOW = 1_700_000_000_000
META = {b"fence": b"41", b"owner": b"host pid 7"}
ROW = {
    "group": "a", "key": "a", "events": 3, "names": 2, "first_offset": 20, "last_offset": 41, "last_event_ms": NOW - 60_000,
    "quiet_in_ms": 840_000, "hold_in_ms": 20_000_000,
}  # fmt: skip


GROUPS = st.one_of(
    st.tuples(st.one_of(st.text(), st.integers(-(2**53), 2**53), st.booleans(), st.floats(-1e9, 1e9))),
    st.tuples(st.text(), st.integers(-(2**53), 2**53)),
)


def said(end: int | None = 42, clock_ms: int = NOW, waiting: int = 0, now_ms: int = NOW, **options: Any) -> str:
    row = ROW | {key: options.pop(key) for key in list(options) if key in ROW}
    fold = Fold(**({"name": "f", "source": "s", "group_key": "g", "changed": "m", "quiet_period": "15m"} | options))
    found = Found(Place("app", fold, 2, clock_ms, 10**9), b"sa", row, ("likes", "shares"), waiting)
    return describe(found, fold, META, end, now_ms)


def test_the_usual_paragraph_names_every_fact() -> None:
    expected = (
        "a of fold f is open in s-2: 3 events at offsets 20 to 41, 2 changed names (likes, shares); the last event is of "
        "2023-11-14 22:12:20Z. It is due once it has been quiet for 15 min: in 14 min if no event comes (2023-11-14 22:27:20Z); "
        "and at the latest when it has been open for 6 h: in 5 h 33 min (2023-11-15 03:46:40Z); as it stands, silence comes "
        "first. 7 more events would close it at once. Nothing of it waits in the outbox. The partition is folded to its end "
        "(offset 41, lag 0). The partition clock, by which all this is reckoned, stands at 2023-11-14 22:13:20Z, with the wall "
        "clock. Last claimed by host pid 7."
    )

    assert expected == said(max_events=10)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param({"end": 50}, "folded up to offset 41, 8 events behind its end", id="lag"),
        pytest.param({"end": 43}, "1 event behind its end", id="lag of one"),
        pytest.param({"end": None}, "the broker does not say where it ends", id="no broker"),
        pytest.param({"now_ms": NOW + 3_600_000}, "1 h behind the wall clock: no worker moves it", id="no worker"),
        pytest.param({"now_ms": NOW + 3_600_000, "end": 50}, "silence closes nothing (backlog = merge)", id="merging"),
        pytest.param({"waiting": 1}, "1 record of it left the open state, waiting in the outbox", id="outbox"),
        pytest.param({"hold_in_ms": 1_000}, "the hold comes first", id="hold"),
        pytest.param({"quiet_in_ms": -1}, "It is due and leaves with the next pass", id="due"),
        pytest.param({"max_changed": 3}, "1 more name can be taken", id="names"),
        pytest.param({"last_event_ms": 10**17}, "is of 100000000000000000 ms", id="a stamp beyond all years"),
    ],
)
def test_what_is_unusual_is_said(options: dict[str, Any], words: str) -> None:
    assert words in said(**options)


def test_a_partition_clock_that_is_ahead_is_called_so_and_no_wait_contradicts_its_time() -> None:
    told = said(clock_ms=NOW + 600_000)

    assert "stands at 2023-11-14 22:23:20Z, 10 min ahead of the wall clock: a worker whose clock was wrong left it so" in told
    assert "in 24 min if no event comes (2023-11-14 22:37:20Z)" in told
    assert "in 5 h 43 min (2023-11-15 03:56:40Z)" in told


def test_while_sessions_catch_up_silence_is_not_said_to_close_nothing() -> None:
    assert "silence closes nothing" not in said(now_ms=NOW + 3_600_000, end=50, backlog="sessions")


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [(-1, "due"), (0, "due"), (1_500, "1.5 s"), (59_999, "60.0 s"), (60_000, "1 min"), (90_000, "1 min 30 s"), (3_600_000, "1 h"),
     (20_400_000, "5 h 40 min"), (172_800_000, "2 d"), (273_600_000, "3 d 4 h")],
)  # fmt: skip
def test_spans_are_written_for_people(span_ms: int, text: str) -> None:
    assert text == span(span_ms)


def test_numbers_and_times_are_written_for_people() -> None:
    assert ("1 group", "2 groups", "0 groups") == tuple(counted(number, "group") for number in (1, 2, 0))
    assert ("2023-11-14 22:13:20Z", "-") == (time_text(NOW), time_text(-1))


@pytest.mark.parametrize(
    ("typed", "members"),
    [
        ("account_1", [b"saccount_1"]),
        ("17", [b"s17", b"j17"]),
        ("17.0", [b"s17.0", b"j17"]),
        ("null", [b"snull"]),
        ('["a", null]', [b's["a", null]']),
        ("true", [b"strue", b"jtrue"]),
        ('["a", 1]', [b's["a", 1]', b'j["a",1]']),
        ("{x}", [b"s{x}"]),
        ('"17"', [b"s17"]),
        ('"a\\nb"', [b"sa\nb"]),
        ('"', [b's"']),
        ('[""]', [b's[""]']),
        ("\udcff", [b"s\xff"]),
    ],
)
def test_a_group_is_looked_for_as_text_and_as_the_json_it_may_be(typed: str, members: list[bytes]) -> None:
    assert members == members_of(typed)


@given(GROUPS)
def test_what_the_list_shows_is_found_when_it_is_typed(group: tuple[object, ...]) -> None:
    member = member_of(group)

    assert member in members_of(shown_group(member))


@given(st.text(), st.lists(st.text(), min_size=1, max_size=3), st.binary())
def test_a_paragraph_is_one_printable_line_whatever_is_in_it(group: str, names: list[str], owner: bytes) -> None:
    fold = Fold(name="f", source="s", group_key="g", changed="m", quiet_period="15m")
    found = Found(Place("app", fold, 2, NOW, 10**9), member_of((group,)), ROW | {"group": group, "key": group}, tuple(names), 1)

    assert describe(found, fold, META | {b"owner": owner}, 42, NOW).isprintable()
