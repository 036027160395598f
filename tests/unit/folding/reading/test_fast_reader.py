"""The fast reader accepts and rejects the same events as the exact one, for the same reasons."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.fold import Fold
from streams_app.folding.reading.fast import KNOWN_GROUPS_MAX, FastReader, is_usual
from streams_app.folding.reading.reader import DecodedRange, EventReader, decode_all
from streams_app.folding.reading.readers import reader_of
from streams_app.settings import Limits
from tests.helpers.kafka.records import Raw

LIMITS = Limits(value_bytes=400, key_bytes=12, names_per_event=3, name_bytes=6)


def fold(**options: Any) -> Fold:
    return Fold(**({"name": "f", "source": "s", "group_key": "g", "changed": "m", "quiet_period": "1m"} | options))


def comparable(reading: DecodedRange) -> tuple[Any, ...]:
    events = [(event.offset, event.timestamp_ms, event.group, sorted(event.changed)) for event in reading.events]
    rejected = [(rejected.record.offset, rejected.reason, rejected.detail) for rejected in reading.rejected]
    return events, rejected, reading.misrouted, reading.misrouted_example


scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=14)
names = st.text(max_size=8)
changed = (
    st.dictionaries(names, scalars | st.lists(scalars, max_size=2), max_size=5)
    | st.lists(names | scalars, max_size=5)
    | names
    | scalars
)
whole = st.fixed_dictionaries({}, optional={"g": scalars | st.lists(scalars, max_size=1), "m": changed, "z": scalars})
texts = st.builds(json.dumps, whole | scalars | st.lists(scalars, max_size=2), ensure_ascii=st.booleans())


def corrupted(parts: tuple[str, int, bytes]) -> bytes:
    text, at, noise = parts
    raw = text.encode("utf-8", "surrogatepass")
    return raw[:at] + noise + raw[at:]


values = (
    st.none()
    | st.binary(max_size=30)
    | texts.map(lambda text: text.encode("utf-8", "surrogatepass"))
    | st.tuples(texts, st.integers(0, 60), st.binary(min_size=1, max_size=2)).map(corrupted)
)


@given(
    st.lists(st.tuples(values, st.sampled_from([b"a", b"", None, b"1"])), max_size=12), st.sampled_from(["dead-letter", "ignore"])
)
def test_both_readers_agree_about_any_bytes(items: list[tuple[bytes | None, bytes | None]], tombstones: str) -> None:
    records = [Raw(i, None if i == 3 else i, key, value) for i, (value, key) in enumerate(items)]
    declared = fold(tombstones=tombstones)
    exact = EventReader(declared, LIMITS).read(records, decode_all(records, LIMITS))
    fast = FastReader(declared, LIMITS)

    # The order of offsets is compared, too; the second pass finds groups and names in the caches.
    assert comparable(exact) == comparable(fast.read(records)) == comparable(fast.read(records))


ODD = [
    "1e999", "-1e999", "1" * 400, "-" + "9" * 400, "1" * 5_000, "9e308", "1.7976931348623158e308", "1.7976931348623159e308",
    "1E+400", "0e999", "-0.0", "1.0", "1e-999", "0." + "1" * 700, "1" * 300 + "e10", "18446744073709551616", "9007199254740993",
    "01e999", "1e999.5", "--1e999", "-01e999", "1e999e1", ".1e999", "1.e999", "1e+", "+1e999", "NaN", "-Infinity", "1e22",
    '"a"', '"b"', '"1e999"', '"\\"1e999"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\u0061"', '"\x01"', '"\udcff"', '"é"', '"', "\\",
    "[" * 900 + "1e999" + "]" * 900, "[" * 1_100 + "]" * 1_100, '{"y":1e999}', "[1e999]", '["x"]', '["x",1e999]',
    '{"x":1e999,"x":1}', "{}", "[]", "tru", "null",
]  # fmt: skip
"""Texts where a JSON value is expected: many are invalid JSON, or are not read by every reader."""

odd = st.sampled_from(ODD)
fields = st.tuples(st.sampled_from(['"g"', '"m"', '"z"', '"\\u0067"', '"y"', "1e999"]), odd).map(":".join)
usual = st.sampled_from(['"g":"a"', '"m":{"x":1}', '"m":{"y":2,"x":1}', '"m":["x","y"]', '"m":"y"'])
mapped = st.lists(st.tuples(st.sampled_from(['"x"', '"y"', '"new"', '"xxxxxxx"']), odd).map(":".join), max_size=3).map(
    lambda members: '"m":{' + ",".join(members) + "}"
)
odd_events = st.tuples(
    st.lists(fields | usual | mapped, max_size=5), st.sampled_from(["", "", "", " ", "1e999", "}", "\ufeff"])
).map(lambda parts: ("{" + ",".join(parts[0]) + "}" + parts[1]).encode("utf-8", "surrogateescape"))
seen_before = st.lists(
    st.sampled_from([b'{"g":"a","m":{"x":1,"y":2}}', b'{"g":"b","m":["new"]}', b'{"g":"1e999","m":"y"}']), max_size=3
)


@given(st.lists(odd_events, min_size=1, max_size=4), seen_before)
def test_reading_an_event_is_independent_of_earlier_events(values: list[bytes], before: list[bytes]) -> None:
    limits = Limits(key_bytes=12, names_per_event=3, name_bytes=6)
    fresh: list[Any] = []
    for value in values:
        records = [Raw(7, 1, b"a", value)]
        fresh.append(comparable(EventReader(fold(), limits).read(records, decode_all(records, limits))))
    fast = FastReader(fold(), limits)
    fast.read([Raw(at, 1, b"a", value) for at, value in enumerate(before)])

    assert fresh == [comparable(fast.read([Raw(7, 1, b"a", value)])) for value in values]
    assert fresh == [comparable(fast.read([Raw(7, 1, b"a", value)])) for value in values]


@pytest.mark.parametrize("depth", [990, 1_022, 1_023, 1_024, 1_025, 3_000])
def test_deep_event_is_judged_equally_at_any_stack_depth(depth: int) -> None:
    records = [Raw(0, 1, b"a", b'{"g":"a","m":{"x":1},"z":' + b"[" * depth + b"]" * depth + b"}")]
    expected = comparable(EventReader(fold(), Limits()).read(records))
    before = sys.getrecursionlimit()
    readings = []
    for limit in (before, 20_000):
        sys.setrecursionlimit(limit)
        try:
            reader = FastReader(fold(), Limits())
            reader.read([Raw(0, 1, b"a", b'{"g":"a","m":{"x":1}}')])
            readings.append(comparable(reader.read(records)))
        finally:
            sys.setrecursionlimit(before)

    assert [expected, expected] == readings


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" * 400, "9e308", "1" * 5_000])
@pytest.mark.parametrize("text", ['{"g":"a","m":{"x":%s}}', '{"g":"a","m":{"x":1},"z":[{"y":%s}]}', '{"g":%s,"m":["x"],"g":"a"}'])
def test_number_beyond_a_double_is_valid_in_an_unread_field(text: str, number: str) -> None:
    for reader in (FastReader(fold(), Limits()), EventReader(fold(), Limits())):
        reading = reader.read([Raw(0, 1, b"a", (text % number).encode())])

        assert [(b"sa", ["x"])] == [(event.group, list(event.changed)) for event in reading.events]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('{"g":1e999,"m":["x"]}', {}),
        ('{"g":"a","m":1e999}', {}),
        ('{"g":"a","m":["x",1e999]}', {}),
        ('{"g":"a","m":{"x":1e999}}', {"keep": "last"}),
        ('{"g":"a","m":{"x":1},"z":1e999}', {"source_filter": bool}),
    ],
)
def test_number_beyond_a_double_is_rejected_in_a_required_field(text: str, options: dict[str, Any]) -> None:
    reading = reader_of(fold(**options), Limits()).read([Raw(0, 1, b"a", text.encode())])

    assert [] == reading.events
    assert ["not-json"] == [rejected.reason for rejected in reading.rejected]
    assert "a number beyond a double (1e999)" in reading.rejected[0].detail


@pytest.mark.parametrize("value", [b'{"g":"a","m":"x","z":' + b'"\\"' * 400_000, b'{"z":' + b"1" * 900_000 + b"}", b"-" * 900_000])
def test_long_invalid_json_is_rejected_quickly(value: bytes) -> None:
    reading = EventReader(fold(), Limits()).read([Raw(0, 1, b"a", value)])

    assert 1 == len(reading.rejected)


@pytest.mark.parametrize(
    "value",
    [
        b'{"g":"a","m":{"x":1},"z":"\xff"}',
        b'{"g":"a","m":{"x":"\xff"}}',
        b'{"g":"a","m":{"x":tru}}',
        b'{"g":"a","m":{"x":1}} x',
        b'{"g":"a","m":{"x":1},"g":"b"}',
        b'{"g":12345678901234567890123,"m":{"x":1}}',
        b'{"g":1e400,"m":{"x":1}}',
        b'{"g":"\\ud800","m":{"x":1}}',
        b'\xef\xbb\xbf{"g":"a","m":{"x":1}}',
        b'{"g":"a","m":{"x":1}}' + b" " * 400,
        b'{"g":"aaaaaaaaaaaaa","m":{"x":1}}',
        b'{"g":"a","m":{"xxxxxxx":1}}',
        '{"g":"é","m":{"ü":1}}'.encode(),
        b'{"g":"a","m":{"x":1},"z":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"g":' + b"[" * 5_000 + b"]" * 5_000 + b',"m":{"x":1}}',
    ],
)
def test_both_readers_agree_about_odd_values(value: bytes) -> None:
    records = [Raw(0, 1, b"a", b'{"g":"a","m":{"x":1}}'), Raw(1, 1, b"a", value)]
    for limits in (LIMITS, Limits()):
        exact = EventReader(fold(), limits).read(records, decode_all(records, limits))

        assert comparable(exact) == comparable(FastReader(fold(), limits).read(records))


def test_too_many_names_are_rejected_even_if_all_are_cached() -> None:
    limits = Limits(names_per_event=2)
    cached = [Raw(at, 1, b"a", b'{"g":"a","m":["%c"]}' % name) for at, name in enumerate(b"xyz")]
    records = [*cached, Raw(3, 1, b"a", b'{"g":"a","m":{"x":1,"y":1,"z":1}}'), Raw(4, 1, b"a", b'{"g":"a","m":{"x":1,"y":1}}')]
    reading = FastReader(fold(), limits).read(records)

    assert ["too-many-names"] == [rejected.reason for rejected in reading.rejected]
    assert [0, 1, 2, 4] == [event.offset for event in reading.events]


def test_groups_beyond_the_cache_are_read_correctly() -> None:
    reader = FastReader(fold(), Limits())
    records = [Raw(i, 1, b"k%d" % i, b'{"g":"k%d","m":["x"]}' % i) for i in range(KNOWN_GROUPS_MAX + 10)]
    reading = reader.read(records)

    assert len(records) == len({event.group for event in reading.events})
    assert 0 == reading.misrouted


def test_group_key_limit_applies_beyond_the_cached_groups() -> None:
    limits = Limits(key_bytes=12)
    reader = FastReader(fold(), limits)
    reader.read([Raw(i, 1, b"k%d" % i, b'{"g":"k%d","m":{"x":1}}' % i) for i in range(KNOWN_GROUPS_MAX)])
    records = [
        Raw(0, 1, b"a", b'{"g":"%s","m":{"x":1}}' % key) for key in (b"a" * 12, b"a" * 13, "é".encode() * 6, "é".encode() * 7)
    ]
    reading = [comparable(reader.read([record])) for record in records]

    assert reading == [comparable(EventReader(fold(), limits).read([record])) for record in records]
    assert [[], ["too-large"], [], ["too-large"]] == [[reason for _, reason, _ in rejected] for _, rejected, _, _ in reading]


@pytest.mark.parametrize(
    "options",
    [
        {"group_key": "a.b"},
        {"group_key": ["a", "b"]},
        {"group_key": "@key"},
        {"group_key": 'a"b'},
        {"changed": "a\\b"},
        {"changed": "a\nb"},
        {"keep": "last"},
        {"decode": json.loads},
        {"source_filter": bool},
        {"changed": lambda event: event["m"]},
    ],
)
def test_unusual_fold_uses_the_exact_reader(options: dict[str, Any]) -> None:
    assert not is_usual(fold(**options))
    assert not isinstance(reader_of(fold(**options), Limits()), FastReader)
    assert isinstance(reader_of(fold(), Limits()), FastReader)
