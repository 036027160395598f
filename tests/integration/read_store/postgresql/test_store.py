"""The read store in PostgreSQL alone: a killed server, values that it cannot store, access rights, and its statements."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.core.store import Counts
from streams_app.read_store.postgresql.store import MAX_KEY_BYTES, PostgresStore
from streams_app.settings import ReadStoreSettings
from tests.conftest import KafkaServer, Names
from tests.helpers.kafka.topics import create_topics
from tests.helpers.read_store.stores import P0, Postgres, write
from tests.helpers.waiting import wait_until
from tests.integration.read_store.reading import PARTITIONS, PostgresReading
from tests.servers.postgresql import PostgreSQL
from tests.servers.tls import Authority
from tests.servers.tls_front import tls_front

LIMIT_SECONDS = 60
LIKES = Cell("f", "a", "likes")

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def harness(postgresql_url: str) -> AsyncIterator[Postgres]:
    made = Postgres(postgresql_url)
    await made.store.initialise()
    yield made
    await made.close()


@pytest.fixture
def server() -> Iterator[PostgreSQL]:
    """Yield a server of this test alone that may be killed; it logs every statement."""
    started = PostgreSQL.start(options=("log_statement=all",))
    yield started
    started.stop()


# A killed server


async def test_server_killed_during_a_sync_ends_in_the_correct_state(
    kafka: KafkaServer, names: Names, server: PostgreSQL, tmp_path: Path
) -> None:
    reading = PostgresReading(names, kafka.bootstrap_servers, tmp_path / "unused", url=server.url)
    await create_topics(kafka.bootstrap_servers, [reading.topic], PARTITIONS)
    harness = Postgres(server.url)
    await harness.store.initialise()
    await reading.send(20_000)

    async def count() -> int:
        ((found,),) = await harness.run("SELECT count(*) FROM cells")
        return int(found)

    async def is_whole() -> bool:
        return await count() == len(reading.sent)

    async with reading.member():
        await wait_until(count, LIMIT_SECONDS, "something is in the store")
        server.kill()
        left = reading.sent.copy()
        await reading.send(100)
        restarted = await asyncio.to_thread(server.restart)
        try:
            await wait_until(is_whole, LIMIT_SECONDS, "everything is in the store")
            stored = {name: int(value) for _, name, value, _, _ in await harness.rows()}
        finally:
            await harness.close()
    restarted.stop()

    assert (20_000, reading.sent) == (len(left), stored)


async def test_store_resumes_once_its_server_returns_and_a_batch_is_one_statement(server: PostgreSQL) -> None:
    harness = Postgres(server.url)
    await harness.store.initialise()
    await write(harness.store, [CellChange(LIKES, 1, 1)], 1, 0)
    server.kill()
    with pytest.raises(TryAgainError, match=r"read store dashboard postgresql://127\.0\.0\.1"):
        await write(harness.store, [CellChange(LIKES, 2, 2)], 2, 0)
    restarted = await asyncio.to_thread(server.restart)
    counts = await write(harness.store, [CellChange(Cell("f", "a", f"n{number}"), 2, number) for number in range(500)], 2, 0)
    progress = await harness.store.checkpoints()
    await harness.close()
    log = (server.directory / "server.log").read_text("utf-8")
    restarted.stop()

    assert (Counts(written=500), {P0: 2}) == (counts, progress)
    # Of the third batch: the second one never arrived.
    assert 2 == log.count("WITH batch$ AS MATERIALIZED")
    assert 4 == log.count("INSERT INTO")


# Statements


async def test_repeated_changes_write_nothing(harness: Postgres) -> None:
    changes = [CellChange(LIKES, 5, 1), CellChange(Cell("f", "b", "likes"), 5, "x")]
    await write(harness.store, changes, 6, 100)
    before = await harness.run("SELECT ctid::text, xmin::text, * FROM cells ORDER BY 1")
    await write(harness.store, changes, 6, 200)
    await write(harness.store, [CellChange(LIKES, 4, 9)], 6, 300)

    assert before == await harness.run("SELECT ctid::text, xmin::text, * FROM cells ORDER BY 1")


async def test_server_counts_one_write_for_each_change_and_none_touches_an_index(harness: Postgres) -> None:
    cells = [Cell("f", f"g{number}", "likes") for number in range(3)]
    for version, values in ((1, (1, 1, 1)), (1, (1, 1, 1)), (5, (2, 2, 1)), (4, (9, 9, 9))):
        await write(harness.store, [CellChange(cell, version, value) for cell, value in zip(cells, values, strict=True)])
    await harness.store.close()  # the server counts what a session has done when it ends, at the latest

    async def counted() -> list[tuple[int, ...]]:
        return await harness.run(
            "SELECT n_tup_ins, n_tup_upd, n_tup_hot_upd, n_tup_del FROM pg_stat_user_tables WHERE relname = 'cells'"
        )

    async def is_counted() -> bool:
        return (await counted())[0][0] > 0

    await wait_until(is_counted, LIMIT_SECONDS, "the session has ended")

    assert [(3, 3, 3, 0)] == await counted()


async def test_row_is_found_by_its_key_in_a_table_of_any_size(harness: Postgres) -> None:
    await harness.run("INSERT INTO cells SELECT 'f', 'g' || n, 'likes', '1', 1, 0 FROM generate_series(1, 20000) AS n")
    await harness.run("ANALYZE cells")
    store = harness.store
    assert isinstance(store, PostgresStore)
    async with harness.connected() as connection:
        rows = await connection.fetch(
            f"EXPLAIN {store._apply_sql}", 0, *P0, None, 0,
            ["f"] * 50, [f"g{n}" for n in range(50)], ["likes"] * 50, ["2"] * 50, [2] * 50,
        )  # fmt: skip
    plan = "\n".join(row[0] for row in rows)

    assert "Index Scan using cells_pkey on cells" in plan
    assert "Seq Scan on cells" not in plan


# Bad input


@pytest.mark.parametrize("kind", ["numeric", "text", "double precision"])
async def test_column_of_another_type_is_rejected(postgresql_url: str, kind: str) -> None:
    harness = Postgres(postgresql_url)
    await harness.run(f"CREATE TABLE cells (fold text, group_key text, name text, value {kind}, version bigint, updated_ms bigint)")
    with pytest.raises(ConfigurationError, match=rf"value {kind}, version bigint, .*; expected .* value jsonb"):
        await harness.store.initialise()
    missing = await harness.store.missing()
    await harness.close()

    assert ["table cells", "table cells_progress"] == missing


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (CellChange(Cell("f", "a\0", "n"), 1, 1), "group or name holds U+0000"),
        (CellChange(Cell("f", "a", "n\0"), 1, 1), "group or name holds U+0000"),
        (CellChange(LIKES, 1, "\0"), "the value holds U+0000"),
        (CellChange(LIKES, 1, float("inf")), "the value is not a finite number"),
        (CellChange(Cell("f", "g" * MAX_KEY_BYTES, "n"), 1, 1), f"group and name have {MAX_KEY_BYTES + 2} bytes"),
        (CellChange(LIKES, 1, "fine"), None),
    ],
)
async def test_value_postgresql_cannot_store_is_rejected_before_it_is_sent(
    harness: Postgres, change: CellChange, expected: str | None
) -> None:
    found = harness.store.rejection(change)

    assert (found or "").startswith(expected or "")
    assert (expected is None) == (found is None)


async def test_longest_group_and_name_fit_into_the_index(harness: Postgres) -> None:
    # Random text: repetitions would be compressed.
    cell = Cell("f", os.urandom(MAX_KEY_BYTES // 2 - 2).hex(), "na")
    change = CellChange(cell, 1, 1)

    assert None is harness.store.rejection(change)
    assert Counts(written=1) == await write(harness.store, [change])


# Access


@pytest.fixture
async def url_with_password() -> AsyncIterator[str]:
    """Return the URL of a server that requires the password ``s3cret-7`` of a user ``reader``."""
    with PostgreSQL.start() as first:
        admin = Postgres(first.url)
        await admin.run("CREATE ROLE reader LOGIN PASSWORD 's3cret-7'")
        await admin.run("GRANT ALL ON SCHEMA public TO reader")
        rules = first.directory / "rules"
        rules.write_text("host all app 127.0.0.1/32 trust\nhost all reader 127.0.0.1/32 scram-sha-256\n", "utf-8")
        rules.chmod(0o644)
        await admin.run(f"ALTER SYSTEM SET hba_file = '{rules}'")
        first.kill()
        with await asyncio.to_thread(first.restart) as restarted:
            yield restarted.url.replace("app@", "reader@")


def settings_of(url: str, **given: Any) -> ReadStoreSettings:
    return ReadStoreSettings.model_validate({"name": "dashboard", "url": url, "folds": ["f"], "source": "carried", **given})


async def waiting_for_label(settings: ReadStoreSettings) -> str:
    store = PostgresStore(settings)
    with pytest.raises(TryAgainError) as caught:
        await store.checkpoints()
    await store.close()
    return str(caught.value)


async def test_password_file_is_read_for_each_connection(url_with_password: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret-7\n", "utf-8")
    store = PostgresStore(settings_of(url_with_password, password_file=file))
    done = await store.initialise()
    await store.probe()
    await store.close()
    file.write_text("wrong-1", "utf-8")
    with pytest.raises(TryAgainError, match="password authentication failed for user") as caught:
        await store.checkpoints()
    await store.close()

    assert ["created table folded_values", "created table folded_values_progress"] == done
    assert "wrong-1" not in str(caught.value)
    assert "password" in await waiting_for_label(settings_of(url_with_password))


async def test_password_in_the_url_appears_in_no_message(url_with_password: str) -> None:
    assert (
        "reader"
        not in (await waiting_for_label(settings_of(url_with_password.replace("reader@", "reader:s3cret-8@")))).partition(": ")[0]
    )
    assert "s3cret" not in await waiting_for_label(settings_of(url_with_password.replace("reader@", "reader:s3cret-8@")))


async def test_server_is_trusted_only_with_a_certificate_of_the_authority(postgresql: PostgreSQL, tmp_path: Path) -> None:
    ours, other = Authority.make(tmp_path / "ours"), Authority.make(tmp_path / "other")
    async with tls_front(postgresql.port, ours.sign("server")) as port:
        url = f"postgresql://app@127.0.0.1:{port}/postgres"
        store = PostgresStore(settings_of(url, ssl_cafile=ours.certificate))
        missing = await store.missing()
        await store.close()
        distrusted = await waiting_for_label(settings_of(url, ssl_cafile=other.certificate))
    without = await waiting_for_label(settings_of(postgresql.url, ssl_cafile=ours.certificate))

    assert ["table folded_values", "table folded_values_progress"] == missing
    assert "certificate verify failed" in distrusted
    assert "rejected SSL upgrade" in without
