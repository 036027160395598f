"""Counts the dead letters and replayed events of a key, which stay in their topics until retention removes them.

Key and value of a dead letter are those of the rejected event. Many of these cannot be decoded, and an event may name several
keys. So records that mention the key are counted apart from those that have it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from streams_app.codec import scalars_of
from streams_app.delivery.batch import TP, SourceRecordWithHeaders
from streams_app.events.headers import is_erasure
from streams_app.kafka.log_reader import log_reader, read_ranges
from streams_app.operations.forget.part import ForgottenKey, TopicBounds
from streams_app.requirements.components import DEAD_LETTERS, REPLAYED
from streams_app.settings import Settings

COUNTED: Final = frozenset({DEAD_LETTERS, REPLAYED})
"""Roles of the topics whose records are counted."""

MAX_OFFSETS: Final = 1_000_000
"""Maximum number of offsets of a topic that are read, the newest ones. It takes about 10 s."""

Show: TypeAlias = Callable[[str, int, int | None], None]


class CountedRecords(NamedTuple):
    """How many records of a topic have a key.

    Attributes:
        with_key: Records whose record key it is.
        mentions: Other records with the key in their value or headers.
        newest_ms: Highest timestamp of both; -1 if there is none.
        read: Number of offsets that were read, the newest ones.
        offsets: Number of offsets of the topic.
    """

    with_key: int
    mentions: int
    newest_ms: int
    read: int
    offsets: int


class KeySearch:
    """Finds a key in records (pure)."""

    def __init__(self, key: ForgottenKey) -> None:
        self._keys = frozenset((*key.record_keys, key.typed.encode("utf-8", "surrogateescape")))
        self._searches = [
            [_pattern(part) for part in parts]
            for parts in dict.fromkeys(_parts(member) for member in key.members)
            if all(parts)
        ]  # fmt: skip

    def has(self, record: SourceRecordWithHeaders) -> bool:
        return record.key in self._keys

    def mentions(self, record: SourceRecordWithHeaders) -> bool:
        contents = [content for content in (record.key, record.value, *(value for _, value in record.headers)) if content]
        return any(all(any(part.search(content) for content in contents) for part in parts) for parts in self._searches)


def _parts(member: bytes) -> tuple[bytes, ...]:
    """Return the fields of a group key as text; several only if it has several fields."""
    try:
        scalars = scalars_of(member)
    except UnicodeDecodeError:
        return (member[1:],)
    return tuple(part.encode() if type(part) is str else orjson.dumps(part) for part in scalars)


def _pattern(part: bytes) -> re.Pattern[bytes]:
    """Match a text as it is or escaped in JSON, and no longer word that contains it: "anna-1" is not in "anna-10".

    In values framed by a schema registry, which begin with a zero byte, the text follows its length, which may look like a letter.
    """
    text = part.decode("utf-8", "surrogateescape")
    spellings = {
        part,
        json.dumps(text)[1:-1].encode(),
        json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "surrogateescape"),
    }
    found = b"|".join(map(re.escape, sorted(spellings, key=len, reverse=True)))
    return re.compile(rb"(?<![\w-])(?:" + found + rb")(?![\w-])|\A\0.*?(?:" + found + rb")", re.DOTALL)


async def count_records(
    settings: Settings, topic: str, logs: Mapping[TP, TopicBounds], key: ForgottenKey, show: Show
) -> CountedRecords:  # fmt: skip
    """Count the records of a key in a topic; read at most its newest :data:`MAX_OFFSETS`."""
    share = max(1, MAX_OFFSETS // max(1, len(logs)))
    ranges = {tp: (max(bounds.begin, bounds.end - share), bounds.end) for tp, bounds in logs.items()}
    offsets, total = sum(bounds.end - bounds.begin for bounds in logs.values()), sum(end - begin for begin, end in ranges.values())
    search, with_key, mentions, newest_ms, read = KeySearch(key), 0, 0, -1, 0
    if not total:
        return CountedRecords(0, 0, -1, 0, 0)
    async with log_reader(settings.kafka, topic, [tp.partition for tp in logs]) as consumer:
        async for batch in read_ranges(consumer, ranges):
            has, has_mention, batch_ms = _counted(batch.records, search)
            with_key, mentions, newest_ms = with_key + has, mentions + has_mention, max(newest_ms, batch_ms)
            read += len(batch.records)
            show(f"{read:,} records of {topic} read", read, total)
    return CountedRecords(with_key, mentions, newest_ms, total, offsets)


def _counted(records: Iterable[Any], search: KeySearch) -> tuple[int, int, int]:
    with_key = mentions = 0
    newest_ms = -1
    for record in records:
        if is_erasure(record):
            continue
        if search.has(record):
            with_key += 1
        elif search.mentions(record):
            mentions += 1
        else:
            continue
        newest_ms = max(newest_ms, record.timestamp or -1)
    return with_key, mentions, newest_ms
