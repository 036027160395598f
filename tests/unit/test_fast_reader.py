"""The fast reader takes and refuses the same events as the exact one, for the same reasons."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams_app.folding.definition import Fold
from streams_app.folding.fast_reader import KNOWN_GROUPS_MAX, FastReader, is_usual
from streams_app.folding.python_reader import reader_of
from streams_app.folding.reader import EventReader, Reading, decode_all
from streams_app.settings import Limits

LIMITS = Limits(value_bytes=400, key_bytes=12, names_per_event=3, name_bytes=6)


@dataclass
class Raw:
    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None


def fold(**options: Any) -> Fold:
    return Fold(**({"name": "f", "source": "s", "group_key": "g", "changed": "m", "quiet_period": "1m"} | options))


def told(reading: Reading) -> tuple[Any, ...]:
    events = [(event.offset, event.timestamp_ms, event.group, sorted(event.changed)) for event in reading.events]
    refused = [(refused.record.offset, refused.reason, refused.detail) for refused in reading.refused]
    return events, refused, reading.misrouted, reading.misrouted_example


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


def spoilt(parts: tuple[str, int, bytes]) -> bytes:
    text, at, noise = parts
    raw = text.encode("utf-8", "surrogatepass")
    return raw[:at] + noise + raw[at:]


values = (
    st.none()
    | st.binary(max_size=30)
    | texts.map(lambda text: text.encode("utf-8", "surrogatepass"))
    | st.tuples(texts, st.integers(0, 60), st.binary(min_size=1, max_size=2)).map(spoilt)
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(values, st.sampled_from([b"a", b"", None, b"1"])), max_size=12), st.sampled_from(["dead-letter", "ignore"])
)
def test_both_readers_agree_about_any_bytes(items: list[tuple[bytes | None, bytes | None]], tombstones: str) -> None:
    records = [Raw(i, None if i == 3 else i, key, value) for i, (value, key) in enumerate(items)]
    declared = fold(tombstones=tombstones)
    exact = EventReader(declared, LIMITS).read(records, decode_all(records, LIMITS))
    fast = FastReader(declared, LIMITS)

    # The order of offsets is part of it; a second time the groups and names are known.
    assert told(exact) == told(fast.read(records)) == told(fast.read(records))


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

        assert told(exact) == told(FastReader(fold(), limits).read(records))


def test_too_many_names_are_refused_although_all_of_them_are_known() -> None:
    limits = Limits(names_per_event=2)
    known = [Raw(at, 1, b"a", b'{"g":"a","m":["%c"]}' % name) for at, name in enumerate(b"xyz")]
    records = [*known, Raw(3, 1, b"a", b'{"g":"a","m":{"x":1,"y":1,"z":1}}'), Raw(4, 1, b"a", b'{"g":"a","m":{"x":1,"y":1}}')]
    reading = FastReader(fold(), limits).read(records)

    assert ["too-many-names"] == [refused.reason for refused in reading.refused]
    assert [0, 1, 2, 4] == [event.offset for event in reading.events]


def test_groups_beyond_those_remembered_are_read_all_the_same() -> None:
    reader = FastReader(fold(), Limits())
    records = [Raw(i, 1, b"k%d" % i, b'{"g":"k%d","m":["x"]}' % i) for i in range(KNOWN_GROUPS_MAX + 10)]
    reading = reader.read(records)

    assert len(records) == len({event.group for event in reading.events})
    assert 0 == reading.misrouted


@pytest.mark.parametrize(
    "options",
    [
        {"group_key": "a.b"},
        {"group_key": ["a", "b"]},
        {"group_key": "@key"},
        {"keep": "last"},
        {"decode": json.loads},
        {"source_filter": bool},
        {"changed": lambda event: event["m"]},
    ],
)
def test_what_is_not_usual_is_read_the_exact_way(options: dict[str, Any]) -> None:
    assert not is_usual(fold(**options))
    assert not isinstance(reader_of(fold(**options), Limits()), FastReader)
    assert isinstance(reader_of(fold(), Limits()), FastReader)
