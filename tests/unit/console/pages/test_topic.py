"""Records of a topic as they are shown: JSON, text, bytes, cut, and hidden."""

from __future__ import annotations

import pytest

from streams_app.console.pages.rendering import plain
from streams_app.console.pages.topic import MOST_BYTES, MOST_CHARACTERS, MOST_HEADERS, partition_of, record_text, value_text
from streams_app.console.reading.asking import Asked, PageError
from streams_app.console.reading.hiding import Hidden
from streams_app.operations.newest_records import TopicRecord, partition_of_key
from streams_app.settings import Settings

FOLD = {"name": "f", "source": "s", "group_key": "k", "changed": "c", "quiet_period": "1m"}


def hidden(*, is_on: bool) -> Hidden:
    return Hidden(Settings.model_validate({"app_id": "a", "folds": [FOLD], "console": {"hide_values": is_on}}))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ("empty", "", False)),
        (b"", ("text", "", False)),
        (b'{"a":[1]}', ("json", '{\n  "a": [\n    1\n  ]\n}', False)),
        (b"plain \xc3\xa9", ("text", "plain é", False)),
        (b"\xff\x00\x01", ("bytes", "ff00 01", False)),
        (b"a\0b", ("bytes", "6100 62", False)),
        (b"[" * 2_000, ("text", "[" * 2_000, False)),
    ],
    ids=str,
)
def test_value_is_read_as_what_it_is(value: bytes | None, shown: tuple[str, str, bool]) -> None:
    assert shown == value_text(value)


@pytest.mark.parametrize(
    ("value", "kind", "length"),
    [(b"x" * 10_000_000, "text", MOST_CHARACTERS), (b"\xff" * 10_000_000, "bytes", MOST_BYTES * 5 // 2 - 1),
     (b'{"a":"' + b"x" * 20_000 + b'"}', "text", MOST_CHARACTERS)],
    ids=["text", "bytes", "json"],
)  # fmt: skip
def test_large_value_is_cut(value: bytes, kind: str, length: int) -> None:
    found, text, is_cut = value_text(value)

    assert (kind, length, True) == (found, len(text), is_cut)


def test_key_and_headers_are_one_line_of_printable_text() -> None:
    headers = (("a\n", b"\xff"), ("b", None), *((str(number), b"") for number in range(100)))
    found = record_text(TopicRecord(0, 7, 5, "\u202ekey\n".encode() + b"\xff", b"1", headers), hidden(is_on=False))

    assert found.key is not None and found.key.isprintable()
    assert MOST_HEADERS == len(found.headers)
    assert all(header.name.isprintable() and header.value.isprintable() for header in found.headers)


def test_dead_letter_has_its_reason_detail_and_source() -> None:
    headers = (("reason", b"no-group"), ("detail", b"no field\naccount"), ("source-topic", b"s"), ("source-partition", b"2"),
               ("source-offset", b"41"))  # fmt: skip
    found = record_text(TopicRecord(0, 7, 5, None, b"{}", headers), hidden(is_on=False))
    other = record_text(TopicRecord(0, 7, 5, None, b"{}", (("reason", b"of another program"),)), hidden(is_on=False))

    assert ("no-group", "no field\\naccount", "s/2/41") == (found.reason, found.detail, found.source)
    assert ("", "", "") == (other.reason, other.detail, other.source)


def test_hidden_record_has_only_its_structure() -> None:
    found = record_text(TopicRecord(0, 7, 5, b"secret", b'{"secret": 1}', (("secret", b"secret"),)), hidden(is_on=True))

    assert "secret" not in repr(found)
    assert ("hidden", 13) == (found.kind, found.value_bytes)


def test_text_of_several_lines_keeps_its_lines_and_shows_what_hides() -> None:
    assert "a\n  \\u202eb\\u0000" == plain("a\n  \u202eb\0")


def test_partition_is_a_number_or_empty() -> None:
    assert (3, None) == (partition_of(Asked({}, {"partition": "3"})), partition_of(Asked({}, {"partition": ""})))
    for text in ("-1", "x", "1234567", "\u0663"):
        with pytest.raises(PageError, match="partition must be a number"):
            partition_of(Asked({}, {"partition": text}))


@pytest.mark.parametrize(
    ("key", "partition"),
    [(b"21", (-973932308 & 0x7FFFFFFF) % 100), (b"foobar", (-790332482 & 0x7FFFFFFF) % 100), (b"", (275646681 & 0x7FFFFFFF) % 100)],
)
def test_partition_of_a_key_is_that_of_java(key: bytes, partition: int) -> None:
    """The hashes are those of Kafka's own tests."""
    assert partition == partition_of_key(key, 100)
