"""A row for each group and a column for each name: the content of a row, and tables that users have created for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.core.store import Counts
from streams_app.read_store.postgresql.groups import PostgresGroupStore
from tests.helpers.read_store.stores import Postgres, SqlHarness, write
from tests.integration.conftest import of_groups

LIKES, SHARES = Cell("f", "a", "likes"), Cell("f", "a", "shares")


# Rows


@of_groups
async def test_stale_name_does_not_block_a_newer_one_of_its_row(harness: SqlHarness) -> None:
    await write(harness.store, [CellChange(LIKES, 5, 1), CellChange(SHARES, 5, 2)], now_ms=1)
    counts = await write(
        harness.store, [CellChange(LIKES, 4, 9), CellChange(SHARES, 6, 3), CellChange(Cell("f", "a", "n1"), 4, 4)], now_ms=2
    )

    assert Counts(written=2, stale=1) == counts
    assert [("likes", harness.in_rows(1), 5), ("n1", harness.in_rows(4), 4), ("shares", harness.in_rows(3), 6)] == [
        (name, value, version) for _, name, value, version, _ in await harness.rows()
    ]


@of_groups
async def test_deleted_name_is_null_and_an_older_record_does_not_restore_it(harness: SqlHarness) -> None:
    await write(harness.store, [CellChange(LIKES, 5, 1), CellChange(SHARES, 5, 2)])
    await write(harness.store, [CellChange(LIKES, 7, None)])
    counts = await write(harness.store, [CellChange(LIKES, 6, 1)])

    assert Counts(stale=1) == counts
    assert [("a",)] == await harness.run('SELECT group_key FROM cells WHERE likes IS NULL AND "Shares" IS NOT NULL')


@of_groups
async def test_newer_record_with_the_same_values_moves_the_versions_and_not_the_time(harness: SqlHarness) -> None:
    await write(harness.store, [CellChange(LIKES, 5, 1), CellChange(SHARES, 5, 2)], now_ms=1)
    counts = await write(harness.store, [CellChange(LIKES, 8, 1)], now_ms=2)
    late = await write(harness.store, [CellChange(LIKES, 7, 3)], now_ms=3)

    assert (Counts(unchanged=1), Counts(stale=1)) == (counts, late)
    assert [("likes", harness.in_rows(1), 8, 1), ("shares", harness.in_rows(2), 5, 1)] == [row[1:] for row in await harness.rows()]


@of_groups
async def test_several_folds_have_a_row_each_for_the_same_group(harness: SqlHarness) -> None:
    await write(
        harness.store,
        [CellChange(LIKES, 5, 1), CellChange(Cell("g", "a", "likes"), 3, 2), CellChange(Cell("g", "b", "likes"), 3, 2)],
    )

    assert [("f", "a"), ("g", "a"), ("g", "b")] == sorted(await harness.run("SELECT fold, group_key FROM cells"))


@of_groups
async def test_workers_that_write_names_of_one_row_concurrently_drop_no_change(harness: SqlHarness) -> None:
    async def fill(number: int) -> None:
        store = harness.another()
        for version in range(15):
            done = False
            while not done:
                try:
                    changes = [
                        CellChange(Cell("f", "a", f"n{number}"), version, version),
                        CellChange(LIKES, version * 4 + number, number),
                    ]
                    done = bool(await write(store, changes, tp=TP("s.f", number)))
                except TryAgainError:  # SQLite allows one writer at a time, and its timeout is short
                    await asyncio.sleep(0)  # the turn of another

    await asyncio.gather(*(fill(number) for number in range(4)))

    assert [("likes", harness.in_rows(3), 59), *((f"n{number}", harness.in_rows(14), 14) for number in range(4))] == [
        (name, value, version) for _, name, value, version, _ in await harness.rows()
    ]


@of_groups
async def test_name_without_a_column_is_rejected(harness: SqlHarness) -> None:
    assert "the name 'other' has no column" == harness.store.rejection(CellChange(Cell("f", "a", "other"), 1, 1))
    assert None is harness.store.rejection(CellChange(LIKES, 1, 1))


async def test_empty_name_is_guarded_like_any_other(made: Callable[..., SqlHarness]) -> None:
    harness = made(**{"": "nameless"})
    await harness.store.initialise()
    nameless = Cell("f", "a", "")
    counts = [await write(harness.store, [CellChange(nameless, version, version)]) for version in (5, 4)]
    await harness.close()

    assert [Counts(written=1), Counts(stale=1)] == counts


# User-defined tables

KEY = "PRIMARY KEY (fold, group_key)"


async def test_existing_values_are_kept_until_a_record_names_them(made: Callable[..., SqlHarness]) -> None:
    harness = made(likes="likes", shares="shares")
    await harness.run(f"CREATE TABLE cells ({harness.system_columns}, likes bigint, shares bigint, {KEY})")
    await harness.run("INSERT INTO cells (fold, group_key, likes, shares) VALUES ('f', 'a', 10, 20)")
    await harness.store.initialise()
    counts = await write(harness.store, [CellChange(SHARES, 0, 21)])
    await harness.close()

    assert Counts(written=1) == counts
    assert [(10, 21)] == await harness.run("SELECT likes, shares FROM cells")


async def test_group_fields_may_be_generated_columns_of_the_group_key(made: Callable[..., SqlHarness]) -> None:
    harness = made(likes="likes")
    number = f"CAST(group_key AS {harness.integer})"
    await harness.run(
        f"CREATE TABLE cells ({harness.system_columns}, account_id bigint GENERATED ALWAYS AS ({number}) STORED, likes bigint, "
        f"seen varchar(9) DEFAULT 'never' NOT NULL, note text, {KEY})"
    )
    await harness.store.initialise()
    await write(harness.store, [CellChange(Cell("f", "17", "likes"), 1, 3)])
    await harness.run("UPDATE cells SET note = 'mine'")
    await write(harness.store, [CellChange(Cell("f", "17", "likes"), 2, 4)])
    await harness.close()

    assert [(17, 4, "never", "mine")] == await harness.run("SELECT account_id, likes, seen, note FROM cells")


FAULTS = [
    ("likes bigint", "", "it has no PRIMARY KEY (fold, group_key)"),
    ("likes bigint", "UNIQUE (fold, group_key)", None),
    ("likes bigint", "UNIQUE (fold, group_key, likes)", "it has no PRIMARY KEY (fold, group_key)"),
    ("other bigint", KEY, "it has no column likes: ADD COLUMN likes"),
    ('"LIKES" bigint', KEY, "it has no column likes: there is LIKES"),
    ("likes date", KEY, "its column likes is date; possible are "),
    ("likes bigint NOT NULL DEFAULT 0", KEY, "its column likes is NOT NULL, but NULL is what a name has that is not known"),
    ("likes bigint GENERATED ALWAYS AS (updated_ms + 1) STORED", KEY, "its column likes is computed"),
    ("likes bigint, author text NOT NULL", KEY, "its column author is NOT NULL without a default"),
]


@pytest.mark.parametrize(("columns", "key", "fault"), FAULTS)
async def test_table_fault_is_reported_and_the_table_is_unchanged(
    made: Callable[..., SqlHarness], columns: str, key: str, fault: str | None
) -> None:
    harness = made(likes="likes")
    await harness.run(f"CREATE TABLE cells ({', '.join(filter(None, (harness.system_columns, columns, key)))})")
    if fault is None:
        await harness.store.initialise()
        assert Counts(written=1) == await write(harness.store, [CellChange(LIKES, 1, 1)])
        await harness.close()
        return
    faults = []
    for call in (harness.store.initialise, harness.store.missing):
        with pytest.raises(ConfigurationError) as caught:
            await call()
        faults += caught.value.faults
    with pytest.raises(TryAgainError, match=r"read store dashboard .*: read_stores\.dashboard\.table: cells"):
        await write(harness.store, [CellChange(LIKES, 1, 1)])
    await harness.close()

    assert 2 == len(faults)
    assert all("read_stores.dashboard.table: cells" in line and fault.lower() in line.lower() for line in faults)
    assert [] == await harness.run("SELECT * FROM cells")


async def test_table_of_cells_is_rejected_as_a_table_of_groups_with_all_faults(postgresql_url: str) -> None:
    cells, groups = Postgres(postgresql_url), Postgres(postgresql_url, "groups", {"likes": "likes"})
    await cells.store.initialise()
    with pytest.raises(ConfigurationError) as caught:
        await groups.store.initialise()
    await cells.close()
    await groups.close()

    assert [
        "it has no column versions: ADD COLUMN versions jsonb NOT NULL DEFAULT '{}'",
        "it has no column likes: ADD COLUMN likes jsonb",
        "its column name is NOT NULL without a default, and nothing is written into it",
        "its column version is NOT NULL without a default, and nothing is written into it",
        "it has no PRIMARY KEY (fold, group_key)",
    ] == [fault.removeprefix("read_stores.dashboard.table: cells: ") for fault in caught.value.faults]


async def test_corrected_table_is_accepted_without_a_restart(made: Callable[..., SqlHarness]) -> None:
    harness = made(likes="likes")
    await harness.run(f"CREATE TABLE cells ({harness.system_columns}, {KEY})")
    await harness.run('CREATE TABLE cells_progress (topic text, "partition" integer, next_offset bigint, updated_ms bigint)')
    with pytest.raises(TryAgainError, match="no column likes"):
        await harness.store.checkpoints()
    await harness.run("DROP TABLE cells_progress")
    await harness.run("ALTER TABLE cells ADD COLUMN likes bigint")
    await harness.store.initialise()

    assert Counts(written=1) == await write(harness.store, [CellChange(LIKES, 1, 1)])
    await harness.close()


# PostgreSQL only


async def test_repeated_changes_write_nothing(postgresql_url: str) -> None:
    harness = Postgres(postgresql_url, "groups")
    await harness.store.initialise()
    changes = [CellChange(LIKES, 5, 1), CellChange(Cell("f", "b", "likes"), 5, "x")]
    await write(harness.store, changes)
    before = await harness.run("SELECT ctid::text, xmin::text, * FROM cells ORDER BY 1")
    await write(harness.store, changes)
    await write(harness.store, [CellChange(LIKES, 4, 9)])
    await harness.close()

    assert before == await harness.run("SELECT ctid::text, xmin::text, * FROM cells ORDER BY 1")


async def test_row_is_found_by_its_key_in_a_table_of_any_size(postgresql_url: str) -> None:
    harness = Postgres(postgresql_url, "groups", {"likes": "likes", "shares": "shares"})
    await harness.store.initialise()
    await harness.run("INSERT INTO cells (fold, group_key, likes) SELECT 'f', 'g' || n, '1' FROM generate_series(1, 60000) AS n")
    await harness.run("ANALYZE cells")
    await harness.store.checkpoints()
    store = harness.store
    assert isinstance(store, PostgresGroupStore)
    rows = store._rows([CellChange(Cell("f", f"g{n}", "likes"), 2, n) for n in range(500)])
    async with harness.connected() as connection:
        plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {store._apply_sql}", 0, "s.f", 0, None, 1, rows))
    await harness.close()

    assert "Index Scan using cells_pkey on cells" in plan
    assert "Seq Scan on cells" not in plan
