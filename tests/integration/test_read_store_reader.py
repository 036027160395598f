"""Where the reader of the read store stands: the store says so, and nothing is passed over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import pytest

from streams_app.delivery.batch import TP
from streams_app.read_store.reader import OutputReader
from streams_app.settings.sections import KafkaSettings
from tests.conftest import KafkaServer, Names
from tests.helpers import create_topics, produce, wait_until

LIMIT_SECONDS = 40
RECORDS = 9

pytestmark = pytest.mark.timeout(120)


class Site:
    """A reader of one partition with a few records."""

    def __init__(self, reader: OutputReader, topic: str) -> None:
        self.reader = reader
        self.partition = TP(topic, 0)

    async def place(self, progress: Mapping[TP, int]) -> None:
        async def is_placed() -> bool:
            await self.reader.poll()
            if self.reader.needs_placing:
                await self.reader.place(progress)
                return not self.reader.needs_placing
            return False

        await wait_until(is_placed, LIMIT_SECONDS, "the partition is placed")

    async def read(self) -> list[int]:
        """Offsets, up to the end of the topic."""
        found: list[int] = []

        async def is_read() -> bool:
            found.extend(record.offset for record in await self.reader.poll())
            return bool(found) and found[-1] == RECORDS - 1

        await wait_until(is_read, LIMIT_SECONDS, "everything is read")
        return found


@pytest.fixture
async def site(kafka: KafkaServer, names: Names) -> AsyncIterator[Site]:
    topic = names.topic("folded")
    await create_topics(kafka.bootstrap_servers, [topic], 1)
    await produce(kafka.bootstrap_servers, topic, [(b"k", b"%d" % number) for number in range(RECORDS)])
    reader = OutputReader(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers), names.app_id, [topic])
    await reader.start()
    yield Site(reader, topic)
    await reader.stop()


@pytest.mark.parametrize("stored", [None, 0, 5])
async def test_it_goes_on_exactly_where_the_store_ends(site: Site, stored: int | None) -> None:
    await site.place({} if stored is None else {site.partition: stored})

    assert list(range(stored or 0, RECORDS)) == await site.read()


async def test_what_was_read_and_not_stored_is_read_again(site: Site) -> None:
    await site.place({})
    await site.read()
    site.reader.synced({site.partition: 3})
    site.reader.suspend()
    while_away = await site.reader.poll()
    site.reader.resume()

    assert [] == while_away
    assert list(range(3, RECORDS)) == await site.read()
