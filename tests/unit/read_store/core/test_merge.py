"""A batch of changes merged into the read store: in each cell the highest version wins, in any order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.read_store.core.merge import Cell, CellChange, StoredCell, Value, Verdict, decide, is_same, merge, newest

CELL = Cell("f", "a", "likes")
OTHER = Cell("f", "a", "shares")

cells = st.builds(Cell, st.sampled_from("fg"), st.sampled_from("ab"), st.sampled_from("xy"))
logs = st.dictionaries(st.tuples(cells, st.integers(0, 6)), st.integers(0, 2), max_size=30).map(
    lambda drawn: [CellChange(cell, version, value) for (cell, version), value in drawn.items()]
)


def applied(store: dict[Cell, StoredCell], changes: Sequence[CellChange]) -> None:
    """Apply one batch, as a store does."""
    merged = merge(store, newest(changes))
    for change in merged.written:
        store[change.cell] = StoredCell(change.version, change.value)
    for change in merged.confirmed:
        store[change.cell] = StoredCell(change.version, store[change.cell].value)


@given(logs, st.data())
def test_merge_yields_the_value_of_the_highest_version_for_any_order_and_duplication(
    log: list[CellChange], data: st.DataObject
) -> None:
    duplicates = data.draw(st.lists(st.sampled_from(log), max_size=10) if log else st.just([]))
    delivered = data.draw(st.permutations(log + duplicates))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(delivered)), max_size=5)))
    store: dict[Cell, StoredCell] = {}
    for begin, end in zip([0, *cuts], [*cuts, len(delivered)], strict=True):
        applied(store, delivered[begin:end])
    expected: dict[Cell, StoredCell] = {}
    for change in sorted(log, key=lambda change: change.version):
        expected[change.cell] = StoredCell(change.version, change.value)

    assert expected == store


@given(st.lists(logs, max_size=6))
def test_stored_version_never_goes_back(batches: list[list[CellChange]]) -> None:
    store: dict[Cell, StoredCell] = {}
    for batch in batches:
        before = dict(store)
        applied(store, batch)

        assert {cell: stored.version for cell, stored in before.items()} == {
            cell: min(stored.version, store[cell].version) for cell, stored in before.items()
        }


@given(logs, logs)
def test_every_change_is_counted_once(before: list[CellChange], batch: list[CellChange]) -> None:
    store: dict[Cell, StoredCell] = {}
    applied(store, before)
    changes = newest(batch)
    merged = merge(store, changes)

    assert len(changes) == len(merged.written) + merged.stale + merged.unchanged
    assert len(merged.confirmed) <= merged.unchanged


@pytest.mark.parametrize(
    ("change", "stored", "expected"),
    [
        pytest.param(CellChange(CELL, 5, 1), None, Verdict.WRITTEN, id="a cell never seen"),
        pytest.param(CellChange(CELL, 0, None), None, Verdict.WRITTEN, id="a cell never seen, of which the source knows nothing"),
        pytest.param(CellChange(CELL, 5, 2), StoredCell(4, 1), Verdict.WRITTEN, id="newer, another value"),
        pytest.param(CellChange(CELL, 5, None), StoredCell(4, 1), Verdict.WRITTEN, id="newer, the value is gone"),
        pytest.param(CellChange(CELL, 5, 1), StoredCell(4, 1), Verdict.UNCHANGED, id="newer, the same value"),
        pytest.param(CellChange(CELL, 5, 1), StoredCell(5, 1), Verdict.UNCHANGED, id="the same record again"),
        pytest.param(CellChange(CELL, 5, 2), StoredCell(5, 1), Verdict.STALE, id="the same record, read later or earlier"),
        pytest.param(CellChange(CELL, 4, 2), StoredCell(5, 1), Verdict.STALE, id="older, another value"),
        pytest.param(CellChange(CELL, 4, 1), StoredCell(5, 1), Verdict.STALE, id="older, the same value"),
        pytest.param(CellChange(CELL, 5, 1), StoredCell(4, "1"), Verdict.WRITTEN, id="the text is not the number"),
        pytest.param(CellChange(CELL, 5, 1.0), StoredCell(4, 1), Verdict.WRITTEN, id="the fraction is not the integer"),
        pytest.param(CellChange(CELL, 5, None), StoredCell(4, None), Verdict.UNCHANGED, id="still gone"),
    ],
)
def test_verdict_follows_from_version_and_value(change: CellChange, stored: StoredCell | None, expected: Verdict) -> None:
    assert expected == decide(change, stored)


def test_version_is_stored_for_each_name_and_not_for_the_group() -> None:
    store: dict[Cell, StoredCell] = {}
    applied(store, [CellChange(OTHER, 9, 90)])
    applied(store, [CellChange(CELL, 5, 50), CellChange(OTHER, 5, 50)])

    assert {OTHER: StoredCell(9, 90), CELL: StoredCell(5, 50)} == store


def test_newer_version_of_an_equal_value_is_confirmed_so_that_none_between_is_written() -> None:
    merged = merge({CELL: StoredCell(4, 1)}, [CellChange(CELL, 8, 1)])
    store = {CELL: StoredCell(4, 1)}
    for change in (CellChange(CELL, 8, 1), CellChange(CELL, 6, 2)):
        applied(store, [change])

    assert ([], [CellChange(CELL, 8, 1)], 1) == (merged.written, merged.confirmed, merged.unchanged)
    assert {CELL: StoredCell(8, 1)} == store


def test_equal_version_confirms_nothing() -> None:
    merged = merge({CELL: StoredCell(4, 1)}, [CellChange(CELL, 4, 1)])

    assert ([], [], 0, 1) == (merged.written, merged.confirmed, merged.stale, merged.unchanged)


def test_newest_keeps_the_highest_version_of_a_cell_and_the_order_of_the_cells() -> None:
    changes = [
        CellChange(OTHER, 1, 1),
        CellChange(CELL, 5, 5),
        CellChange(OTHER, 3, 3),
        CellChange(CELL, 4, 4),
        CellChange(OTHER, 2, 2),
    ]

    assert [CellChange(OTHER, 3, 3), CellChange(CELL, 5, 5)] == newest(changes)


def test_newest_of_equal_versions_is_the_first() -> None:
    assert [CellChange(CELL, 5, "first")] == newest([CellChange(CELL, 5, "first"), CellChange(CELL, 5, "second")])


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (1, 1, True), (1, 1.0, False), (1, "1", False), ("a", "a", True), ("a", b"a", False), (None, None, True),
        (None, 0, False), (1.5, 1.5, True), (0, "", False),
    ],
)  # fmt: skip
def test_values_are_equal_only_with_their_type(left: Value, right: Value, expected: bool) -> None:
    assert expected == is_same(left, right)


def test_verdicts_are_the_values_of_the_metric_label() -> None:
    assert ["written", "stale", "unchanged"] == [str(verdict) for verdict in Verdict]
