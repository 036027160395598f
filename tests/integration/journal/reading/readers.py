"""What tests of readers share: a journal of three days, and what is read of it."""

from __future__ import annotations

from typing import Any

from streams_app import JournalReader
from streams_app.journal.core.entry import Row
from streams_app.journal.reading.entries import Entry, Gap
from streams_app.settings import Settings
from tests.conftest import Names
from tests.helpers.journal.journals import JournalShard, row


def declared(names: Names, url: str, **journal: Any) -> Settings:
    of = {"name": "accounts", "source": "events", "key": "account_id", **journal}
    return Settings.model_validate({"app_id": names.app_id, "redis": {"url": url}, "journals": [of]})


async def read(reader: JournalReader, after: str = "earliest", key: Any = "a", **options: bool) -> list[Entry | Gap]:
    return [found async for found in reader.read(key, after, **options)]


def offsets(found: list[Entry | Gap]) -> list[int | tuple[int, int, str]]:
    return [one.offset if isinstance(one, Entry) else (one.first, one.last, one.why) for one in found]


THREE_DAYS = [row("a" if offset % 2 == 0 else "b", offset, offset // 10, b'{"n": %d}' % offset) for offset in range(30)]
"""Events 0 to 29, ten a day; those with even offsets are of the key ``a``."""

OF_A = list(range(0, 30, 2))


async def three_days(shard: JournalShard) -> None:
    await shard.append(THREE_DAYS)


def of_day(number: int) -> list[Row]:
    return THREE_DAYS[10 * number : 10 * number + 10]
