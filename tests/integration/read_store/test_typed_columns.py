"""User-defined typed columns: accepted values, rejection of single cells, and progress of the rest."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from streams_app.read_store.core.merge import Cell, CellChange, JsonText
from streams_app.read_store.core.store import CheckpointStep, Counts, NotStorableError
from tests.helpers.read_store.mysql import Mysql
from tests.helpers.read_store.stores import P0, Postgres, SqlHarness, Sqlite, write

LIKES, SHARES = Cell("f", "a", "likes"), Cell("f", "a", "shares")
NAMES = {"likes": "likes", "shares": "shares"}


async def typed(harness: SqlHarness, columns: str) -> SqlHarness:
    await harness.run(f"CREATE TABLE cells ({harness.system_columns}, {columns}, PRIMARY KEY (fold, group_key))")
    await harness.store.initialise()
    await harness.store.checkpoints()
    return harness


TAKEN: list[tuple[str, Any, str, Any]] = [
    ("bigint", 2**63 - 1, "9223372036854775807", 2**63 - 1), ("bigint", "7", "7", 7), ("bigint", 3.0, "3", 3),
    ("numeric", Decimal("1.10"), "1.10", 1.1), ("numeric", 1.0, "1.0", 1), ("numeric", 2**40, str(2**40), 2**40),
    ("double precision", 7, "7", 7.0), ("double precision", 0.1, "0.1", 0.1),
    ("text", "007", "007", "007"), ("text", 7, "7", "7"), ("text", JsonText('{"a":"é\\n"}'), '{"a":"é\\n"}', '{"a":"é\\n"}'),
    ("boolean", True, "true", 1), ("boolean", 0, "false", 0),
]  # fmt: skip


async def test_value_is_stored_in_its_column_type_and_compares_equal(made: Callable[..., SqlHarness]) -> None:
    taken = {f"n{number}": row for number, row in enumerate(TAKEN)}
    harness = made(**{name: name for name in taken}, **{f"{name}_absent": f"{name}_absent" for name in taken})
    await typed(harness, ", ".join(f"{name} {row[0]}, {name}_absent {row[0]}" for name, row in taken.items()))
    if isinstance(harness, Mysql):  # there, numeric has no fraction
        taken = {name: row for name, row in taken.items() if row[0] != "numeric"}
    counts = [
        await write(
            harness.store,
            [
                CellChange(Cell("f", "a", given), version, value)
                for name, row in taken.items()
                for given, value in ((name, row[1]), (f"{name}_absent", None))
            ],
        )
        for version in (1, 2)
    ]
    expected = {name: row[2] if isinstance(harness, Postgres) else row[3] for name, row in taken.items()}
    (found,) = await harness.run(f"SELECT {', '.join(map(harness.shown, taken))} FROM cells")
    (absent,) = await harness.run(f"SELECT {', '.join(f'{name}_absent' for name in taken)} FROM cells")
    await harness.close()

    assert {name: (type(form), form) for name, form in expected.items()} == {
        name: (type(form), form) for name, form in zip(taken, found, strict=True)
    }
    assert {None} == set(absent)
    assert [Counts(written=2 * len(taken)), Counts(unchanged=2 * len(taken))] == counts


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("jsonb", JsonText('{"a":[1,null]}'), '{"a": [1, null]}'), ("jsonb", 2**70, str(2**70)), ("integer", 5, "5"),
        ("timestamptz", "2026-11-23T10:00:00.5+02:00", "2026-11-23 08:00:00.5+00"),
        ("timestamptz", "2026-11-23", "2026-11-23 00:00:00+00"),
        ("numeric(12,2)", 1.005, "1.01"), ("numeric(12,2)", 7, "7.00"), ("varchar(3)", "äöü", "äöü"),
    ],
)  # fmt: skip
async def test_postgresql_specific_types_are_supported(postgresql_url: str, kind: str, value: Any, expected: str) -> None:
    harness = await typed(Postgres(postgresql_url, "groups", NAMES), f"likes {kind}, shares {kind}")
    counts = [await write(harness.store, [CellChange(LIKES, version, value)]) for version in (1, 2)]
    ((found,),) = await harness.run("SELECT likes::text FROM cells")
    await harness.close()

    assert (expected, [Counts(written=1), Counts(unchanged=1)]) == (found, counts)


async def test_unsuitable_value_is_rejected_alone_before_it_is_written(made: Callable[..., SqlHarness]) -> None:
    harness = await typed(made(**NAMES), "likes bigint, shares text")
    reasons = [
        harness.store.rejection(CellChange(cell, 1, value)) for cell, value in ((LIKES, "many"), (LIKES, 1.5), (SHARES, "many"))
    ]
    with pytest.raises(NotStorableError) as caught:
        await write(harness.store, [CellChange(LIKES, 1, "many"), CellChange(SHARES, 1, "many")])
    found = await harness.run("SELECT * FROM cells")
    await harness.close()

    assert ["the value is not a number", "the value is not a whole number", None] == [
        why and why.partition(",")[0] for why in reasons
    ]
    assert ({LIKES: "the value is not a number"}, []) == (caught.value.cells, found)


async def test_values_that_violate_a_constraint_are_found_and_nothing_is_written(made: Callable[..., SqlHarness]) -> None:
    harness = await typed(made(**NAMES), "likes bigint CHECK (likes >= 0), shares bigint")
    cells = [Cell("f", f"g{number}", "likes") for number in range(40)]
    batch = [CellChange(cell, 1, -1 if number in (7, 30) else number) for number, cell in enumerate(cells)]
    with pytest.raises(NotStorableError) as caught:
        await harness.store.apply([*batch, CellChange(SHARES, 1, 1)], CheckpointStep(P0, None, 5), 0)
    left = await harness.run("SELECT * FROM cells"), await harness.store.checkpoints()
    counts = await write(harness.store, [change for change in batch if change.cell not in caught.value.cells], 5)
    await harness.close()

    assert {cells[7], cells[30]} == caught.value.cells.keys()
    assert all("constraint" in why.lower() and "-1" not in why for why in caught.value.cells.values())
    assert ([], {}) == left
    assert Counts(written=38) == counts


async def test_values_that_violate_a_constraint_together_are_rejected_together(made: Callable[..., SqlHarness]) -> None:
    harness = await typed(made(**NAMES), "likes bigint, shares bigint, CHECK (likes >= shares)")
    with pytest.raises(NotStorableError) as caught:
        await write(harness.store, [CellChange(LIKES, 1, 1), CellChange(SHARES, 1, 2), CellChange(Cell("f", "b", "likes"), 1, 1)])
    await harness.close()

    assert {LIKES, SHARES} == caught.value.cells.keys()


async def test_row_too_large_for_a_page_is_rejected_and_the_others_are_not(postgresql_url: str) -> None:
    columns = {f"c{number}": f"c{number}" for number in range(600)}
    harness = Postgres(postgresql_url, "groups", columns)
    await harness.store.initialise()
    large = [CellChange(Cell("f", "a", name), 1, "x" * 18) for name in columns]
    with pytest.raises(NotStorableError) as caught:
        await write(harness.store, [*large, CellChange(Cell("f", "b", "c0"), 1, 1)])
    await harness.close()

    assert {"a"} == {cell.group_key for cell in caught.value.cells}
    assert "row is too big" in next(iter(caught.value.cells.values()))


async def test_decimal_beyond_the_precision_of_sqlite_is_the_nearest_float(made: Callable[..., SqlHarness]) -> None:
    harness = made(**NAMES)
    if not isinstance(harness, Sqlite):
        pytest.skip("others hold every decimal, or as many digits as their column has")
    await typed(harness, "likes numeric, shares real")
    changes = [CellChange(LIKES, 1, Decimal("12345678901234567890.5")), CellChange(SHARES, 1, 2)]
    counts = [await write(harness.store, changes), await write(harness.store, changes)]
    found = await harness.run("SELECT likes, shares FROM cells")
    await harness.close()

    assert ([(12345678901234567890.5, 2.0)], [Counts(written=2), Counts(unchanged=2)]) == (found, counts)


DOCS = (Path(__file__).parents[3] / "docs" / "reference" / "read-stores.md").read_text("utf-8")


@pytest.mark.parametrize("table", re.findall(r"(CREATE TABLE account_metrics .*?)```", DOCS, re.DOTALL))
async def test_documented_tables_are_accepted(postgresql_url: str, table: str) -> None:
    harness = Postgres(postgresql_url, "groups", NAMES)
    await harness.run(table.replace("account_metrics", "cells"))
    await harness.store.initialise()
    counts = await write(harness.store, [CellChange(Cell("f", "17", name), 1, 7) for name in NAMES])
    await harness.close()

    assert Counts(written=2) == counts
