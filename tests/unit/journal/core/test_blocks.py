"""Blocks, entries and days of journals."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any

import cramjam
import msgpack
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from streams_app.journal.core import block, day, repack
from streams_app.journal.core.entry import MAX_VALUE_BYTES, UNKEYED, Row, row_of, too_large
from streams_app.journal.core.usual import UsualKeys
from streams_app.schemas.values import ValueReader
from streams_app.settings import Limits
from tests.helpers.kafka.records import Raw
from tests.helpers.schemas.schemas import avro, schema_cache

KEYS = st.binary(max_size=4) | st.sampled_from([b"", b"\0", b"\0\xff", b"a\0", b"a", b"a\0\xff", b"\xff\xff"])
OFFSETS = st.integers(0, 2**53)
HEADERS = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(tuple)
ROWS = st.lists(
    st.builds(Row, KEYS, OFFSETS, st.integers(-1, 2**45), st.none() | st.binary(max_size=2_000), HEADERS),
    min_size=1, max_size=6, unique_by=lambda row: row[:2],
).map(lambda rows: sorted(rows, key=lambda row: row[:2]))  # fmt: skip


@given(KEYS, OFFSETS, KEYS, OFFSETS)
def test_positions_are_in_the_order_of_key_and_offset(key: bytes, offset: int, other: bytes, other_offset: int) -> None:
    assert (key < other or (key == other and offset < other_offset)) == (
        block.position(key, offset) < block.position(other, other_offset)
    )


@given(st.lists(ROWS, min_size=1, max_size=8))
def test_scan_position_sorts_directly_after_its_member(blocks: list[list[Row]]) -> None:
    members = sorted(set(map(block.encode, blocks)))
    for number, member in enumerate(members):
        position = block.scan_position(member)

        assert members[number + 1 :] == [one for one in members if one > position]
        assert len(position) <= len(block.position(*block.last_of(member))) + 9


@given(KEYS, OFFSETS)
def test_scan_position_of_a_position_is_itself(key: bytes, offset: int) -> None:
    assert block.position(key, offset) == block.scan_position(block.position(key, offset))


@given(ROWS, ROWS)
def test_rows_of_one_key_match_those_of_the_whole_block(rows: list[Row], others: list[Row]) -> None:
    for key in {row.key for row in [*rows, *others]}:
        assert [row for row in rows if row.key == key] == block.rows_of_key(block.encode(rows), key)


@given(ROWS)
def test_encoded_rows_are_decoded_at_their_last_position(rows: list[Row]) -> None:
    member = block.encode(rows)

    assert rows == block.decode(member)
    assert (rows[-1].key, rows[-1].offset) == block.last_of(member)
    assert member.startswith(block.position(rows[-1].key, rows[-1].offset))


@given(ROWS)
def test_rows_are_stored_as_msgpack_that_older_workers_read(rows: list[Row]) -> None:
    assert msgpack.packb(rows, use_bin_type=True) == block.packed(rows)


@given(ROWS)
def test_single_row_is_serialized_as_when_it_is_decoded(rows: list[Row]) -> None:
    for row in rows:
        found = block.only_row_of(block.encode([row]))
        is_plain = not row.headers and b"\0" not in row.key and len(row.value or b"") < 900

        assert found is not None or not is_plain
        assert found is None or block.packed([row]) == block.packed([found[2]])
        assert found is None or row[:2] == found[:2] == block.end_of(found[2])


@given(ROWS)
def test_member_of_several_rows_has_no_only_row(rows: list[Row]) -> None:
    assert len(rows) == 1 or block.only_row_of(block.encode([*rows, rows[-1]._replace(offset=2**54)])) is None


@given(ROWS)
def test_serialized_rows_are_packed_like_decoded_ones(rows: list[Row]) -> None:
    mixed = [block.packed([row])[1:] if number % 2 else row for number, row in enumerate(rows)]

    assert block.packed(rows) == block.packed(mixed)


@given(ROWS, st.booleans(), st.data())
def test_any_damaged_byte_is_detected(rows: list[Row], is_one: bool, data: st.DataObject) -> None:  # drawn
    member = bytearray(block.encode(rows[:1] if is_one else rows))
    at = data.draw(st.integers(0, len(member) - 1))
    member[at] ^= data.draw(st.integers(1, 255))

    assert block.only_row_of(bytes(member)) is None
    with pytest.raises(block.DamagedBlockError):
        block.decode(bytes(member))


@given(ROWS, st.data())
def test_truncated_block_is_detected(rows: list[Row], data: st.DataObject) -> None:
    member = block.encode(rows)

    truncated = member[: data.draw(st.integers(0, len(member) - 1))]

    assert block.only_row_of(truncated) is None
    with pytest.raises(block.DamagedBlockError):
        block.decode(truncated)


@given(st.binary(max_size=60))
def test_bytes_of_another_format_are_damaged(member: bytes) -> None:
    with pytest.raises(block.DamagedBlockError):
        block.decode(member)


@pytest.mark.parametrize("claimed", [1_000, block.MAX_RAW_BYTES + 1], ids=["fewer than there are", "beyond the bound"])
def test_zip_bomb_with_a_valid_checksum_is_damaged(claimed: int) -> None:
    payload = bytes(cramjam.zstd.compress(bytes(block.MAX_RAW_BYTES + 1), 1))
    head = block.position(b"k", 1) + struct.pack(">BI", block.COMPRESSED, claimed)
    checksum = struct.pack(">I", crc32c(payload, crc32c(head)))

    with pytest.raises(block.DamagedBlockError, match="cannot be decoded"):
        block.decode(head + checksum + payload)


def test_chunk_becomes_a_block_for_each_key_and_large_ones_are_compressed() -> None:
    rows = [Row(b"ab"[n % 2 :][:1], n, n, b"x" * (1 if n % 2 else 500)) for n in range(10)]
    members = block.encode_by_key({key: [block.short_of(row) for row in rows if row.key == key] for key in (b"a", b"b")})

    assert [rows[0::2], rows[1::2]] == [block.decode(member) for member in members]
    assert len(members[0]) < 200


# Packing


@given(ROWS, st.integers(1, 6), st.integers(1, 6))
def test_digest_is_independent_of_how_rows_are_divided(rows: list[Row], some: int, other: int) -> None:
    digests = [repack.RowDigest() for _ in range(2)]
    for digest, size in zip(digests, (some, other), strict=True):
        for at in range(0, len(rows), size):
            digest.add(block.packed(rows[at : at + size]))

    assert digests[0].value == digests[1].value
    assert len(rows) == digests[0].value[0]


@given(ROWS, st.data())
def test_digest_differs_for_different_rows(rows: list[Row], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(rows) - 1))
    changed: dict[str, Any] = {
        "key": b"other key",
        "offset": -5,
        "time_ms": -5,
        "value": b"other value",
        "headers": (("other", b""),),
    }
    name = data.draw(st.sampled_from(list(changed)))
    others = [*rows[:at], rows[at]._replace(**{name: changed[name]}), *rows[at + 1 :]]
    digests = [repack.RowDigest() for _ in range(2)]
    digests[0].add(block.packed(rows))
    digests[1].add(block.packed(others))

    assert digests[0].value != digests[1].value


@pytest.mark.parametrize("count", [15, 16, 65_535, 65_536])
def test_digest_of_many_rows_equals_that_of_single_ones(count: int) -> None:
    rows = [Row(b"", offset, 0, None) for offset in range(count)]
    digests = [repack.RowDigest() for _ in range(2)]
    digests[0].add(block.packed(rows))
    for at in range(0, count, 10):
        digests[1].add(block.packed(rows[at : at + 10]))

    assert digests[0].value == digests[1].value


def test_packed_blocks_hold_all_rows_in_order_and_are_bounded() -> None:
    rows = [Row(b"%03d" % (n // 7), n, n, b"x" * (n * 37 % 5_000), (("h", b"y" * (n % 900)),)) for n in range(1_000)]
    rows[500] = rows[500]._replace(value=b"x" * 900_000)
    members = [block.encode(rows[at : at + 7]) for at in range(0, len(rows), 7)]
    packer = repack.Repacker(0, 999)
    blocks = [*packer.add(members[:50]), *packer.add(members[50:]), *packer.finish()]

    assert rows == [row for one in blocks for row in block.decode(one)]
    assert sorted(blocks) == blocks
    sizes = [len(block.raw_of(one)) for one in blocks]
    assert 980_000 > max(sizes)
    assert [] == [size for size in sizes if not 60_000 < size < 72_000 and size < 900_000 and size != sizes[-1]]


def test_duplicate_rows_and_rows_beyond_the_segment_are_skipped() -> None:
    members = sorted([
        block.encode([Row(b"a", 9, 0, b"before")]),
        block.encode([Row(b"a", 10, 0, b"x"), Row(b"a", 12, 0, b"x")]),
        block.encode([Row(b"a", 10, 0, b"x")]),
        block.encode([Row(b"a", 12, 0, b"x"), Row(b"a", 15, 0, b"x")]),
        block.encode([Row(b"b", 11, 0, b"x"), Row(b"b", 20, 0, b"behind")]),
    ])  # fmt: skip
    in_order = repack.RowsInOrder(10, 19)

    assert [(b"a", 10), (b"a", 12), (b"a", 15), (b"b", 11)] == [
        block.end_of(row) for member in members for row in in_order.of([member])
    ]


@dataclass
class Journal:
    key_fields: tuple[str, ...] = ("account",)
    is_by_record_key: bool = False


BY_KEY = Journal((), is_by_record_key=True)


@pytest.mark.parametrize(
    ("journal", "record", "expected", "reason"),
    [
        (Journal(), Raw(1, 5, value=b'{"account": "7"}'), b"s7", None),
        (Journal(), Raw(1, 5, value=b'{"account": 7}'), b"j7", None),
        (Journal(("a.b", "c")), Raw(1, 5, value=b'{"a": {"b": 1}, "c": "x"}'), b'j[1,"x"]', None),
        (Journal(), Raw(1, 5, value=b'{"account": "7", "n": 1e999}'), b"s7", None),
        (Journal(), Raw(1, 5, value=b"{"), UNKEYED, "not-json"),
        (Journal(), Raw(1, 5, value=b"[]"), UNKEYED, "not-an-object"),
        (Journal(), Raw(1, 5, value=b'{"account": null}'), UNKEYED, "no-key"),
        (Journal(), Raw(1, 5, value=b'{"account": {}}'), UNKEYED, "no-key"),
        (Journal(("a.b",)), Raw(1, 5, value=b'{"a": 1}'), UNKEYED, "no-key"),
        (Journal(), Raw(1, 5, value=None), UNKEYED, "no-key"),
        (Journal(), Raw(1, 5, value=b'{"account": "12345678"}'), b"s12345678", None),
        (Journal(), Raw(1, 5, value=b'{"account": "123456789"}'), UNKEYED, "key-too-large"),
        (BY_KEY, Raw(1, 5, key=b"\xff\0{", value=b"\xff"), b"\xff\0{", None),
        (BY_KEY, Raw(1, 5, key=b"12345678", value=None), b"12345678", None),
        (BY_KEY, Raw(1, 5, key=b"123456789", value=None), UNKEYED, "key-too-large"),
        (BY_KEY, Raw(1, 5, key=None, value=b"x"), UNKEYED, "no-key"),
        (BY_KEY, Raw(1, 5, key=b"", value=b"x"), UNKEYED, "no-key"),
    ],
)
def test_record_is_filed_under_its_key_and_stored_whole(journal: Journal, record: Raw, expected: bytes, reason: str | None) -> None:
    assert (Row(expected, 1, 5, record.value), reason) == row_of(record, journal, Limits(key_bytes=8))
    assert UsualKeys(journal, Limits(key_bytes=8)).of(record) in (None, expected or None)


def test_record_keeps_its_headers_and_marks_a_missing_time() -> None:
    record = Raw(1, None, value=b'{"account": "7"}', headers=(("h", b"\0"), ("h", None)))

    assert Row(b"s7", 1, -1, record.value, (("h", b"\0"), ("h", None))) == row_of(record, Journal(), Limits())[0]


EXTREME_NUMBERS = st.sampled_from(["7", 2**53, -(2**53), 1e300, 1.0])
SCALARS = st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none(), EXTREME_NUMBERS)
FIELDS = st.sampled_from(["account", "a", "c", "\u00e9"])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(FIELDS, inner), max_leaves=5)
EVENTS = st.dictionaries(FIELDS, VALUES)


@given(EVENTS.map(lambda event: json.dumps(event).encode()), st.data())
def test_fast_key_reader_agrees_with_the_exact_one(value: bytes, data: st.DataObject) -> None:
    bytes_of_it = bytearray(value)
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(bytes_of_it)))
        bytes_of_it[at : at + data.draw(st.integers(0, 1))] = data.draw(
            st.sampled_from([b"", b"\xff", b"\xc3\xa9", b'"', b"\\", b"\\ud800", b"1e999", b"[", b"{}", b",", b"\0"])
        )
    record = Raw(1, 5, b"k", bytes(bytes_of_it))
    for journal in (Journal(), Journal(("a", "c")), Journal(("a.c",)), BY_KEY):
        row, reason = row_of(record, journal, Limits())
        found = UsualKeys(journal, Limits()).of(record)
        assert found is None or (reason is None and row == Row(found, 1, 5, record.value))


@pytest.mark.parametrize("value", [b'{"account": "7", "n": 1}', b'{"account": 7}', '{"account": "\u00e9"}'.encode()])
def test_usual_records_are_read_fast(value: bytes) -> None:
    record = Raw(1, 5, b"k", value)

    assert row_of(record, Journal(), Limits())[0].key == UsualKeys(Journal(), Limits()).of(record)
    assert b"k" == UsualKeys(BY_KEY, Limits()).of(record)


@pytest.mark.parametrize(
    "record",
    [
        Raw(1, 5, b"k", b'{"account": "7"}', headers=(("h", b"x"),)),
        Raw(1, 5, b"k", b'{"account": "7", "x": "%s"}' % (b"x" * 90)),
        Raw(1, 5, b"k", None),
        Raw(1, 5, b"k", b""),
        Raw(1, 5, b"123456789", b'{"account": "123456789"}'),
        Raw(1, 5, b"", b"{}"),
        Raw(1, 5, None, b'{"account": "7"'),
    ],
    ids=["headers", "too large", "tombstone", "empty", "key too large", "no key", "not JSON"],
)
def test_unusual_records_are_read_exactly(record: Raw) -> None:
    limits = Limits(value_bytes=100, key_bytes=8)

    assert [None, None] == [UsualKeys(journal, limits).of(record) for journal in (Journal(), BY_KEY)]


@pytest.mark.parametrize(
    ("value", "headers", "size"),
    [(b'{"account": "7", "x": "%s"}' % (b"x" * 90), (), 115), (b'{"account": "7"}', (("h", b"x" * 100),), 117)],
)
def test_oversized_value_is_filed_under_its_key_with_its_size(
    value: bytes, headers: tuple[tuple[str, bytes], ...], size: int
) -> None:
    row, reason = row_of(Raw(1, 5, value=value, headers=headers), Journal(), Limits(value_bytes=100))

    assert (b"s7", b'{"too_large":%d}' % size, None, size) == (row.key, row.value, reason, too_large(row))
    assert None is too_large(Row(b"s7", 1, 5, row.value))


@pytest.mark.parametrize(
    ("value", "content", "expected"),
    [
        (b"{}", b"9" * 5_000, None),
        (b'{"too_large":9999999999999999999999999}', b"9" * 25, None),
        (b"{}", b"7", None),
        (None, b"7", None),
        (b'{"too_large":7}', b"x7", None),
        (b'{"too_large":7}', None, None),
        (b'{"too_large":7}', b"7", 7),
        (b'{"too_large":999999999999}', b"9" * 12, 10**12 - 1),
    ],
)
def test_producer_header_is_trusted_only_with_its_value(value: bytes | None, content: bytes | None, expected: int | None) -> None:
    assert expected == too_large(Row(b"k", 1, 5, value, (("streams_app_too_large", content),)))


def test_limits_bound_the_time_a_script_needs_for_a_value() -> None:
    limits = Limits(value_bytes=2 * MAX_VALUE_BYTES)

    assert MAX_VALUE_BYTES + 1 == too_large(row_of(Raw(1, 5, b"k", bytes(MAX_VALUE_BYTES + 1)), BY_KEY, limits)[0])
    assert None is too_large(row_of(Raw(1, 5, b"k", bytes(MAX_VALUE_BYTES)), BY_KEY, limits)[0])


DAY = 86_400_000
NOW = day.begin_of("2026-08-20")


def test_day_starts_at_midnight_utc() -> None:
    assert ("2026-08-19", "2026-08-20", "2026-08-20") == (day.day_of(NOW - 1), day.day_of(NOW), day.day_of(NOW + DAY - 1))
    with pytest.raises(ValueError, match="20-08"):
        day.begin_of("20-08-2026")


@pytest.mark.parametrize(
    ("record_ms", "expected"),
    [(NOW + 5, NOW + 5), (NOW - 5, NOW), (NOW + 99, NOW + 10), (-1, NOW), (None, NOW), (4_000_000_000_000, NOW + 10)],
)
def test_clock_follows_records_up_to_the_trusted_clock_and_never_goes_back(record_ms: int | None, expected: int) -> None:
    assert expected == day.clock_after(NOW, record_ms, NOW + 10)


def test_clock_stays_if_the_trusted_clock_is_behind() -> None:
    assert NOW == day.clock_after(NOW, NOW + 5, NOW - 10)


@pytest.mark.parametrize(
    ("received", "clock_ms", "expected"),
    [(0, NOW, False), (0, NOW + DAY - 1, False), (0, NOW + DAY, True), (99, NOW, False), (100, NOW, True)],
)
def test_segment_ends_with_its_day_or_when_it_is_full(
    received: int, clock_ms: int, expected: bool
) -> None:  # a column of the table
    assert expected == day.ends("2026-08-20", received, clock_ms, 100)


@pytest.mark.parametrize(
    ("value", "expected", "reason"),
    [
        (avro(1, {"id": "a", "m": {}}), b"sa", None),
        (b"\0\xff\xff\xff\xff", UNKEYED, "unknown-schema"),
        (b'{"id":"a"}', UNKEYED, "wrong-format"),
        (None, UNKEYED, "no-key"),
    ],
)
def test_framed_value_is_kept_as_produced_under_its_inner_key(value: bytes | None, expected: bytes, reason: str | None) -> None:
    row, found = row_of(Raw(1, 5, value=value), Journal(("id",)), Limits(), ValueReader("avro", schema_cache()))

    assert (expected, value, reason) == (row.key, row.value, found)


def test_key_of_a_change_event_is_in_its_row_and_a_heartbeat_has_none() -> None:
    values, journal = ValueReader("debezium"), Journal(("id",))
    change, heartbeat = Raw(1, 5, value=b'{"op":"c","after":{"id":7}}'), Raw(2, 5, value=b'{"ts_ms":1}')

    assert [(b"j7", None), (UNKEYED, "no-key")] == [
        (row.key, reason) for row, reason in (row_of(record, journal, Limits(), values) for record in (change, heartbeat))
    ]
