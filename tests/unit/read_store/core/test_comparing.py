"""Comparison of cells with a store that a model keeps, and with a corrupted one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.delivery.batch import TP
from streams_app.operations.verify import left_of
from streams_app.operations.verify_result import VerifyResult, behind_text, summary
from streams_app.read_store.core.comparing import Difference, DifferenceKind, difference, differences, stays
from streams_app.read_store.core.merge import Cell, CellChange, StoredCell, Value, merge

LIKES = Cell("f", "a", "likes")
P0, P1 = TP("t", 0), TP("t", 1)

cells = st.builds(Cell, st.just("f"), st.sampled_from("ab"), st.sampled_from(["likes", "shares"]))
values = st.sampled_from([None, 0, 1, 1.0, "1"])


@pytest.mark.parametrize(
    ("value", "stored", "expected"),
    [
        (7, StoredCell(1, 7), None), (None, StoredCell(1, None), None), (None, None, None),
        (7, None, DifferenceKind.MISSING), (7, StoredCell(9, 8), DifferenceKind.WRONG),
        (7, StoredCell(9, None), DifferenceKind.WRONG),
        (None, StoredCell(9, 8), DifferenceKind.GONE), (1, StoredCell(1, 1.0), DifferenceKind.WRONG),
        (1, StoredCell(-1, 2), DifferenceKind.WRONG),
    ],
)  # fmt: skip
def test_cell_is_compared_with_the_source_at_any_version(
    value: Value, stored: StoredCell | None, expected: DifferenceKind | None
) -> None:
    found = difference(CellChange(LIKES, 5, value), stored, is_carried=False)

    assert expected == (found and found.kind)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (None, DifferenceKind.MISSING), (StoredCell(5, 7), None), (StoredCell(4, 7), None),
        (StoredCell(5, 8), DifferenceKind.WRONG),
        (StoredCell(4, 8), DifferenceKind.WRONG),
        (StoredCell(6, 8), None), (StoredCell(-1, 8), None),
    ],
)  # fmt: skip
def test_record_is_compared_with_a_versioned_cell_that_is_not_newer(
    stored: StoredCell | None, expected: DifferenceKind | None
) -> None:
    found = difference(CellChange(LIKES, 5, 7), stored, is_carried=True)

    assert expected == (found and found.kind)


@given(st.lists(st.tuples(cells, values), max_size=12), st.data())
def test_store_synced_in_any_order_differs_only_in_corrupted_cells(
    announced: list[tuple[Cell, Value]], data: st.DataObject
) -> None:
    records = [CellChange(cell, version, value) for version, (cell, value) in enumerate(announced)]
    shuffled = data.draw(st.permutations(records + records[: len(records) // 2]))
    store: dict[Cell, StoredCell] = {}
    for record in shuffled:
        merged = merge(store, [record])
        store |= {one.cell: StoredCell(one.version, one.value) for one in [*merged.written, *merged.confirmed]}

    assert [] == differences(records, store, is_carried=True)

    truth = {record.cell: record for record in records}
    spoilt = data.draw(st.sets(st.sampled_from(sorted(store)))) if store else set()
    for cell in spoilt:
        store[cell] = replace(store[cell], value="spoilt")
    deleted = data.draw(st.sets(st.sampled_from(sorted(store)))) if store else set()
    for cell in deleted:
        del store[cell]
    expected = {cell for cell in spoilt - deleted} | {cell for cell in deleted if truth[cell].value is not None}
    by_source = [one.cell for one in differences(truth.values(), store, is_carried=False)]
    by_records = {one.cell for one in differences(records, store, is_carried=True)}

    assert expected == set(by_source)
    # For a lost cell an older record may have had a value where the newest has none.
    assert spoilt - deleted == by_records - deleted
    assert expected <= by_records


def test_difference_persists_only_if_neither_side_has_changed() -> None:
    before = Difference(DifferenceKind.WRONG, CellChange(LIKES, 5, 7), StoredCell(5, 8))

    assert stays(before, replace(before, change=CellChange(LIKES, 6, 7)))
    assert not stays(before, replace(before, change=CellChange(LIKES, 5, 7.0)))
    assert not stays(before, replace(before, stored=StoredCell(6, 8)))
    assert not stays(before, replace(before, kind=DifferenceKind.GONE))


def test_unsynced_records_are_counted_from_the_beginning_of_the_log() -> None:
    assert 3 + 5 == left_of({P0: (2, 10), P1: (5, 10), TP("t", 2): (0, 0)}, {P0: 7})
    assert 0 == left_of({P0: (2, 10)}, {P0: 99})


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        (VerifyResult(cells=1, records=2), ["read store d: 1 cell and 2 folded records compared, no differences"]),
        (
            VerifyResult(records=2, differences=1, repaired=1),
            ["read store d: 2 folded records compared, 1 difference", "1 repaired"],
        ),
        (
            VerifyResult(differences=2, is_cut=True, on_their_way=1, rejected=1, open_unknown="no Redis"),
            [
                "read store d: 0 folded records compared, at least 2 differences",
                "1 more cell differed and changed meanwhile, or the groups are still open",
                "1 record of the topics passed over: not folded records",
                "differences may belong to groups that are still open, which cannot be checked: no Redis",
            ],
        ),
        (VerifyResult(open_unknown="no Redis"), ["read store d: 0 folded records compared, no differences"]),
    ],
)
def test_result_is_reported_in_sentences(done: VerifyResult, expected: list[str]) -> None:
    assert expected == summary(done, "d")


def test_lag_of_a_store_is_reported_with_and_without_differences() -> None:
    for number in (0, 2):
        text = behind_text(VerifyResult(differences=number, behind=7), "d")

        assert text.startswith("read store d is 7 records behind and stands still: ")
