"""Folds that keep the events themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streams_app.depth import MAX_DEPTH
from streams_app.fold import Fold
from streams_app.folding.core.kept_events import events_of, packed_events
from streams_app.folding.core.record import RecordShape, SealedGroup, render
from streams_app.folding.reading.fast import FastKeptReader
from streams_app.folding.reading.reader import EventReader
from streams_app.folding.reading.readers import reader_of
from streams_app.settings import Limits
from tests.helpers.kafka.records import Raw, kept


def fold(**options: Any) -> Fold:
    return Fold(**({"name": "f", "source": "s", "group_key": "g", "keep": "events", "quiet_period": "1s"} | options))


def read(declared: Fold, *values: bytes) -> tuple[list[bytes], list[tuple[str, str]]]:
    reading = reader_of(declared, Limits()).read([Raw(at, 1_000 + at, b"a", value) for at, value in enumerate(values)])
    return [event.json for event in reading.events], [(one.reason, one.detail) for one in reading.rejected]


def test_whole_event_is_kept_byte_by_byte_without_spaces_around_it() -> None:
    value = b' {"g": "a",\n "n": 1.50, "n": 12345678901234567890}\n'

    assert ([value.strip()], []) == read(fold(), value)


def test_selected_fields_are_kept_and_missing_ones_are_omitted() -> None:
    value = b'{"g": "a", "user": {"id": 7, "name": "b"}, "text": null, "more": 1}'

    assert ([b'{"user.id":7,"g":"a"}'], []) == read(fold(fields=["user.id", "text", "g"]), value)


def test_event_at_the_size_bound_is_kept_and_a_larger_one_is_rejected() -> None:
    fits = b'{"g":"a","x":"%b"}' % (b"x" * 83)
    events, rejected = read(fold(max_bytes=100), fits, fits.replace(b"x}", b"xx}").replace(b'"}', b'x"}'))

    assert [fits] == events
    assert [("too-large", "the event alone has 101 bytes, max_bytes is 100")] == rejected


@pytest.mark.parametrize("levels", [230, 600])
def test_deeply_nested_event_is_kept_only_if_it_can_be_written(levels: int) -> None:
    events, rejected = read(fold(), b'{"g":"a","x":%b%b}' % (b"[" * levels, b"]" * levels))

    assert (1, []) == (len(events), rejected) if levels < MAX_DEPTH else [("no-value", rejected[0][1])] == rejected


def test_number_beyond_a_double_is_rejected_because_it_would_be_in_the_record() -> None:
    assert ["not-json"] == [reason for reason, _ in read(fold(), b'{"g":"a","x":1e999}')[1]]


def test_decoded_event_is_kept_as_json_and_what_json_cannot_represent_is_rejected() -> None:
    declared = fold(decode=lambda value: {"g": "a", "n": value.decode() if value != b"bad" else value})
    events, rejected = read(declared, b"1", b"bad")

    assert [b'{"g":"a","n":"1"}'] == events
    assert ["user-error"] == [reason for reason, _ in rejected]


def test_event_of_any_type_is_kept_if_a_function_returns_its_group() -> None:
    declared = fold(decode=json.loads, group_key=lambda event: event[0])

    assert ([b'["a",1]'], []) == read(declared, b'["a", 1]')


def test_events_are_in_offset_order_each_once_for_any_split() -> None:
    fields = {"12": packed_events(kept((12, b"c"), (13, b"d")), 12), "10": packed_events(kept((10, b"a"), (12, b"c")), 10)}

    assert [(10, b"a"), (12, b"c"), (13, b"d")] == events_of(fields)


def test_row_of_a_change_event_is_kept_with_its_envelope() -> None:
    value = b'{"before":null,"after":{"g":"a","n":1},"op":"c","ts_ms":5}'
    ((event,), rejected) = read(fold(format="debezium"), value)

    assert [] == rejected
    assert {"g": "a", "n": 1, "@op": "c"}.items() <= json.loads(event).items()
    assert "@columns" not in json.loads(event)


@pytest.mark.parametrize(
    "value",
    [
        b'{"g":"a","n":1e999}', b'{"g":"a","n":%b}' % (b"9" * 400), b'{"g":"a"', b'{"g":1}', b'{"g":null}', b'{"g":"\xff"}', b"[]",
        b'{"g":"\xc3\xa4","x":"3e123"}', b'{"x":%b%b,"g":"a"}' % (b"[" * 1_500, b"]" * 1_500), b'{"g":"a","g":"b"}', b'{"g":true}',
        b"",
    ],
)  # fmt: skip
def test_fast_reader_keeps_and_rejects_the_same_events_as_the_exact_reader(value: bytes) -> None:
    declared = fold(max_bytes=100_000)
    records = [Raw(0, 1, b"a", value)]
    fast, exact = reader_of(declared, Limits()).read(records), EventReader(declared, Limits()).read(records)

    assert isinstance(reader_of(declared, Limits()), FastKeptReader)
    assert exact == fast


def test_event_beyond_the_sealed_range_is_not_in_the_record() -> None:
    names = {"10": packed_events(kept((10, b"1"), (11, b"2")), 10), "12": packed_events(kept((12, b"3")), 12)}
    sealed = SealedGroup(b"sa", 10, 11, 2, 1, 2, "quiet", 3, 4, names)
    (record,) = render(sealed, RecordShape.of(fold()), "s", 0)

    assert [1, 2] == json.loads(record.value)["events"]
