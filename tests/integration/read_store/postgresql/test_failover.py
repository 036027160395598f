"""Requirements of a PostgreSQL store: rights on both tables, and among several servers one that is writable."""

from __future__ import annotations

import traceback
from decimal import Decimal

import pytest

from streams_app.embedded.ports import free_port
from streams_app.errors import TryAgainError
from streams_app.read_store.core.merge import Cell, CellChange, JsonText
from streams_app.read_store.core.store import Counts, NotStorableError
from streams_app.read_store.registry import open_store
from streams_app.settings import ReadStoreSettings
from tests.helpers.read_store.stores import P0, Postgres, write
from tests.helpers.waiting import wait_until
from tests.servers.postgresql import PostgreSQL

LIKES = Cell("f", "a", "likes")


def at(harness: Postgres, url: str) -> ReadStoreSettings:
    return harness.settings.model_copy(update={"url": url})


@pytest.mark.parametrize("lacking", ["INSERT", "UPDATE", "SELECT"])
async def test_probe_detects_a_missing_right_on_the_table(postgresql_url: str, lacking: str) -> None:
    harness = Postgres(postgresql_url)
    await harness.store.initialise()
    role = f"writer_{free_port()}"
    rights = ", ".join({"INSERT", "UPDATE", "SELECT"} - {lacking})
    await harness.run(f"CREATE ROLE {role} LOGIN")
    await harness.run(f"GRANT {rights} ON cells TO {role}")
    await harness.run(f"GRANT INSERT, UPDATE, SELECT ON cells_progress TO {role}")
    store = open_store(at(harness, postgresql_url.replace("app@", f"{role}@")))
    with pytest.raises(TryAgainError, match="permission denied for table cells"):
        await store.probe()
    await harness.run(f"GRANT {lacking} ON cells TO {role}")
    await store.probe()
    await store.close()
    left = await harness.store.checkpoints()
    await harness.run(f"DROP OWNED BY {role}")
    await harness.run(f"DROP ROLE {role}")
    await harness.close()

    assert {} == left


async def test_writable_server_is_chosen_among_several(postgresql_url: str) -> None:
    harness = Postgres(postgresql_url)
    await harness.store.initialise()
    host = postgresql_url.partition("@")[2].partition("/")[0]
    url = postgresql_url.replace(host, f"127.0.0.1:{free_port()},{host}")
    store = open_store(at(harness, f"{url}?target_session_attrs=read-write"))
    counts = await write(store, [CellChange(LIKES, 1, 1)], 1)
    await store.close()
    progress = await harness.store.checkpoints()
    await harness.close()

    assert (Counts(written=1), {P0: 1}) == (counts, progress)


async def test_server_demoted_while_it_runs_is_replaced_by_the_writable_one(postgresql_url: str) -> None:
    with PostgreSQL.start() as demoted:
        host, _, database = postgresql_url.partition("@")[2].partition("/")
        await Postgres(demoted.url).run(f'CREATE DATABASE "{database}"')
        first, second = Postgres(demoted.url.replace("/postgres", f"/{database}")), Postgres(postgresql_url)
        url = first.url.replace(f":{demoted.port}", f":{demoted.port},{host}")
        store = open_store(at(first, f"{url}?target_session_attrs=read-write"))
        for harness in (first, second):
            await harness.store.initialise()
        await write(store, [CellChange(LIKES, 1, 1)], 1)
        async with first.connected() as connection:
            await connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            await connection.execute("SELECT pg_reload_conf()")

        async def is_rejected() -> bool:
            try:
                await write(store, [], 1)
            except TryAgainError as error:
                return "read-only" in str(error)
            return False

        await wait_until(is_rejected, 60, "the server is read-only")
        counts = await write(store, [CellChange(LIKES, 2, 2)], 2)
        rows, progress = await second.rows(), await second.store.checkpoints()
        for each in (store, first, second):
            await each.close()

    assert ([("a", "likes", "2", 2, 0)], {P0: 2}, Counts(written=1)) == (rows, progress, counts)


async def test_row_details_in_a_server_message_are_not_reported(postgresql_url: str) -> None:
    harness = Postgres(postgresql_url)
    await harness.store.initialise()
    await harness.run("ALTER TABLE cells_progress ADD CHECK (next_offset < 5)")
    with pytest.raises(TryAgainError) as caught:
        await write(harness.store, [], 7)
    await harness.close()
    traceback_text = "".join(traceback.format_exception(caught.value))

    assert "violates check constraint" in traceback_text
    assert "Failing row" not in traceback_text


async def test_number_beyond_the_server_range_is_named_and_nothing_is_written(postgresql_url: str) -> None:
    harness = Postgres(postgresql_url)
    await harness.store.initialise()
    changes = [CellChange(Cell("f", "a", f"n{number}"), 1, number) for number in range(50)]
    huge, deep = Cell("f", "a", "huge"), Cell("f", "b", "deep")
    changes[7:7] = [CellChange(huge, 1, Decimal("1e200000")), CellChange(deep, 1, JsonText('{"a":1e200000}'))]
    with pytest.raises(NotStorableError) as caught:
        await write(harness.store, changes, 5)
    before = await harness.store.checkpoints(), await harness.rows()
    counts = await write(harness.store, [change for change in changes if change.cell not in caught.value.cells], 5)
    await harness.close()

    assert {huge, deep} == caught.value.cells.keys()
    assert all("overflow" in why or "out of range" in why for why in caught.value.cells.values()), caught.value.cells
    assert (({}, []), Counts(written=50)) == (before, counts)
