"""Where a reader of a journal begins, as it is written; and what a request over HTTP may ask for."""

from __future__ import annotations

from urllib.parse import quote_from_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.errors import CursorError
from streams_app.journal.core.cursor import (
    EXAMPLE,
    MAX_OFFSET,
    MAX_PARTITION,
    Start,
    check_start,
    cursor_text,
    parse_cursor,
    parse_start,
)
from streams_app.journal.core.entry import UNKEYED
from streams_app.journal.reading.page import BadRequestError, PageRequest, parse_request
from streams_app.settings import JournalSettings

NOW_MS = 1_787_000_000_000
DAY_MS = 86_400_000
ACCOUNTS = JournalSettings(name="accounts", source="events", key="account_id")
BY_KEY = JournalSettings(name="records", source="events", key="@key")

POSITIONS = st.dictionaries(st.integers(0, MAX_PARTITION), st.integers(0, MAX_OFFSET), min_size=1, max_size=9)


@given(POSITIONS)
def test_cursor_survives_a_round_trip(positions: dict[int, int]) -> None:
    assert positions == parse_cursor(cursor_text(positions))
    assert Start("cursor", positions) == parse_start(cursor_text(positions), NOW_MS)


@given(POSITIONS)
def test_cursor_names_its_journal_and_fits_no_other(positions: dict[int, int]) -> None:
    start = parse_start(cursor_text(positions, journal="accounts"), NOW_MS)

    assert Start("cursor", positions, journal="accounts") == start
    check_start(start, "accounts", NOW_MS)
    with pytest.raises(CursorError, match="the cursor is of journal accounts, not of orders: use one that orders returned"):
        check_start(start, "orders", NOW_MS)


def test_cursor_without_a_name_fits_every_journal() -> None:
    check_start(parse_start("3-1041", NOW_MS), "orders", NOW_MS)
    check_start(parse_start("0-1,since-5", NOW_MS), "orders", NOW_MS)
    assert "" == cursor_text({}, journal="orders")


@pytest.mark.parametrize("text", ["-99999d", "99999999d", "-99999999999999999d", "1969-12-31", "1969-12-31T23:59"])
def test_time_before_1970_is_rejected_as_such(text: str) -> None:
    with pytest.raises(CursorError, match="is before 1970: write a cursor as in"):
        parse_start(text, NOW_MS)


def test_time_in_the_future_is_rejected_except_in_a_cursor() -> None:
    with pytest.raises(CursorError, match="2099-01-01 00:00:00Z is in the future"):
        check_start(parse_start("2099-01-01", NOW_MS), "accounts", NOW_MS)
    check_start(parse_start(str(NOW_MS + DAY_MS), NOW_MS), "accounts", NOW_MS)
    check_start(parse_start("accounts:since-4070908800000", NOW_MS), "accounts", NOW_MS)


def test_partition_without_events_is_omitted_from_a_cursor() -> None:
    assert "1-0,12-5" == cursor_text({12: 5, 0: -1, 1: 0})


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Start("earliest")),
        ("latest", Start("latest")),
        ("-24h", Start("moment", since_ms=NOW_MS - DAY_MS)),
        ("24h", Start("moment", since_ms=NOW_MS - DAY_MS)),
        ("2026-08-20", Start("moment", since_ms=1_787_184_000_000)),
        ("2026-08-20T06:00+06:00", Start("moment", since_ms=1_787_184_000_000)),
        ("1787184000000", Start("moment", since_ms=1_787_184_000_000)),
        ("3-1041", Start("cursor", {3: 1041})),
        ("0-77,3-1041", Start("cursor", {0: 77, 3: 1041})),
        ("since-1787184000000", Start("moment", since_ms=1_787_184_000_000)),
        ("0-77,3-1041,since-0", Start("moment", {0: 77, 3: 1041})),
        ("accounts:3-1041", Start("cursor", {3: 1041}, journal="accounts")),
        ("a_b-7:0-77,since-9", Start("moment", {0: 77}, 9, "a_b-7")),
        ("since:since-9", Start("moment", since_ms=9, journal="since")),
        ("2026-08-20:12-10", Start("cursor", {12: 10}, journal="2026-08-20")),
        ("2026-08-20T06:00:00+06:00", Start("moment", since_ms=1_787_184_000_000)),
    ],
)
def test_start_accepts_its_documented_forms(text: str, start: Start) -> None:
    assert start == parse_start(text, NOW_MS)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "3", "3-", "-3", "3--1", "3-1041,", ",3-1", "3-1,3-2", "3-1 ", "x-1", "3-x", "³-1", "٣-1", "1-99999999999999999",
        f"1-{MAX_OFFSET + 1}", "123456-1", "yesterday", "2026-13-01", "1e5-2", "3-1041;4-1", "\0", "0-1," * 3_000, "9" * 10_000,
        "inf", "nan", "\udcff", "since-", "since-x", ",since-1", "0-1,since-1,since-2", "since-1,0-1", "0-1,0-2,since-1", "10000-1",
        "accounts:", "accounts:3", "accounts:3-1,3-2", "Accounts:3-1", ":3-1", "a:b:3-1", "accounts:earliest", "accounts:-24h",
        "since-9999999999999999", "²", "-99999d", "99999999d", "-99999999999999999d", "1969-12-31", "--24h", "1787184000000000",
    ],
)  # fmt: skip
def test_malformed_cursor_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(CursorError) as caught:
        parse_start(text, NOW_MS)

    assert (2, True) == (caught.value.exit_code, EXAMPLE in str(caught.value))
    assert len(str(caught.value)) < 400


@given(st.text() | st.from_regex(r"[0-9,-]{0,30}"))
def test_any_text_is_a_start_or_rejected(text: str) -> None:
    try:
        parse_start(text, NOW_MS)
    except CursorError as error:
        assert EXAMPLE in str(error)


# Requests


def asked(query: str, journal: JournalSettings = ACCOUNTS) -> PageRequest:
    return parse_request(journal, query, NOW_MS)


def test_request_with_only_a_key_has_the_default_bounds() -> None:
    assert PageRequest((b"saccount_7",), Start("earliest"), 100, 0, from_floor=False) == asked("key=account_7")


def test_request_may_set_every_parameter() -> None:
    expected = PageRequest((UNKEYED,), Start("cursor", {3: 1041}), 1_000, 60_000, from_floor=True)

    assert expected == asked("unkeyed=1&from=3-1041&limit=1000&wait=60s&from_floor=1")


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("key=17", (b"s17", b"j17")),
        ("key=%2217%22", (b"s17",)),
        ("key=%5B%22a%22,1%5D", (b's["a",1]', b'j["a",1]')),
        ("key=a%20b+c", (b"sa b c",)),
        ("key=a%00%7B", (b"sa\0{",)),
        ("key=%FF", (b"s\xff",)),
    ],
)
def test_key_is_parsed_as_in_the_commands(query: str, keys: tuple[bytes, ...]) -> None:
    assert keys == asked(query).keys


@given(st.binary(min_size=1, max_size=20))
def test_any_bytes_of_a_record_key_can_be_requested(key: bytes) -> None:
    assert (key,) == asked(f"key={quote_from_bytes(key)}", BY_KEY).keys


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "name a key"),
        ("key=", "name a key"),
        ("key=a&unkeyed=1", "name a key"),
        ("unkeyed=yes", "unkeyed must be 1 or 0"),
        ("key=a&from_floor=true", "from_floor must be 1 or 0"),
        ("key=a&key=b", "key is given twice"),
        ("key=a&form=latest", "there is no parameter 'form', did you mean 'from'?"),
        ("key=a&%FF=1", "there is no parameter"),
        ("key=a&limit=0", "limit must be a number from 1 to 1000"),
        ("key=a&limit=1001", "limit must be"),
        ("key=a&limit=-1", "limit must be"),
        ("key=a&limit=1e3", "limit must be"),
        ("key=a&limit=%D9%A3", "limit must be"),
        ("key=a&limit=", "limit must be"),
        ("key=a&wait=61s", "wait must be at most 60s"),
        ("key=a&wait=30", "write a number and a unit"),
        ("key=a&wait=-1s", "write a number and a unit"),
        ("key=a&wait=99999999999999d", "wait"),
        ("&".join(["key=a"] * 30), "more than 20 parameters"),
    ],
)
def test_invalid_request_explains_what_to_write(query: str, message: str) -> None:
    with pytest.raises(BadRequestError, match=message.replace("?", r"\?")):
        asked(query)


def test_malformed_cursor_in_a_request_is_rejected() -> None:
    with pytest.raises(CursorError):
        asked("key=a&from=3")
