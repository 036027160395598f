"""An older copy of a PostgreSQL store is restored under a running worker: the final state is as if it had not been."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import KafkaServer, Names
from tests.helpers.kafka.topics import create_topics
from tests.helpers.read_store.stores import Postgres
from tests.helpers.waiting import wait_until
from tests.integration.read_store.reading import LIMIT_SECONDS, PARTITIONS, PostgresReading

COPY = """
CREATE TABLE cells_copy AS TABLE cells;
CREATE TABLE cells_progress_copy AS TABLE cells_progress
"""
RESTORE = """
TRUNCATE cells, cells_progress;
INSERT INTO cells TABLE cells_copy;
INSERT INTO cells_progress TABLE cells_progress_copy
"""


async def run(harness: Postgres, statements: str) -> None:
    """Execute several statements in one transaction."""
    async with harness.connected() as connection:
        await connection.execute(f"BEGIN ISOLATION LEVEL REPEATABLE READ; {statements}; COMMIT")


@pytest.mark.parametrize("is_silent", [False, True], ids=["while records arrive", "in silence"])
async def test_restored_copy_of_the_tables_is_brought_up_to_date(
    kafka: KafkaServer, names: Names, postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    if is_silent:
        monkeypatch.setattr("streams_app.read_store.sync.processor.CHECK_SECONDS", 0.2)
    reading = PostgresReading(names, kafka.bootstrap_servers, tmp_path / "unused", url=postgresql_url)
    await create_topics(kafka.bootstrap_servers, [reading.topic], PARTITIONS)
    harness = Postgres(postgresql_url)
    await harness.store.initialise()

    async def count() -> int:
        ((found,),) = await harness.run("SELECT count(*) FROM cells")
        return int(found)

    async def is_whole() -> bool:
        return await count() == len(reading.sent)

    async with reading.member():
        await reading.send(3_000)
        await wait_until(count, LIMIT_SECONDS, "something is in the store")
        await run(harness, COPY)
        await reading.send(2_000)
        await wait_until(is_whole, LIMIT_SECONDS, "everything is in the store")
        await run(harness, RESTORE)
        if not is_silent:
            await reading.send(100)
        await wait_until(is_whole, LIMIT_SECONDS, "everything is in the store again")
        stored = {name: int(value) for _, name, value, _, _ in await harness.rows()}
    await harness.close()

    assert reading.sent == stored
