"""Parts of the page of a read store."""

from __future__ import annotations

import pytest

from streams_app.console.pages.read_store import comparison_of, last_batch_ms, stored_group, table_of
from streams_app.console.reading.comparing import ComparisonResult
from streams_app.console.reading.console_reader import Missing
from streams_app.console.reading.hiding import Hidden
from streams_app.console.reading.history import EVERY_MS, History
from streams_app.console.reading.samples import Samples
from streams_app.delivery.batch import TP
from streams_app.operations.read_store_status import GroupCell
from streams_app.operations.verify_result import VerifyResult
from streams_app.read_store.core.comparing import Difference, DifferenceKind
from streams_app.read_store.core.merge import Cell, CellChange, StoredCell
from streams_app.settings import Settings

NOW = 1_700_000_000_000 // EVERY_MS * EVERY_MS
OPEN = Hidden(Settings.model_validate({"app_id": "a", "journals": [{"name": "j", "source": "a", "key": "@key"}]}))


def test_last_batch_is_the_last_sample_with_new_values() -> None:
    history = History()
    for back, value in ((3, 5.0), (2, 9.0), (1, 9.0), (0, 9.0)):
        key = ("read_store_writes_total", (("result", "written"), ("store", "dash")))
        history.add("w", NOW - back * EVERY_MS, Samples({key: value}))

    assert NOW - 2 * EVERY_MS == last_batch_ms("dash", history, NOW)
    assert last_batch_ms("other", history, NOW) is None


@pytest.mark.parametrize(
    ("checkpoints", "ends", "rows", "left"),
    [
        ({}, {}, [], None),
        ({0: 7}, {}, [(7, None)], None),
        ({0: 7, 1: 2}, {0: (0, 10), 1: (3, 10)}, [(7, 3), (2, 7)], 10),
        ({}, {0: (4, 10)}, [(None, 6)], 6),
        ({0: 12}, {0: (0, 10)}, [(12, 0)], 0),
    ],
)
def test_table_has_what_is_left_of_each_partition(
    checkpoints: dict[int, int], ends: dict[int, tuple[int, int]], rows: list[tuple[int | None, int | None]], left: int | None
) -> None:
    found = table_of({TP("t", one): to for one, to in checkpoints.items()}, {TP("t", one): end for one, end in ends.items()})

    assert (rows, left) == ([(row.checkpoint, row.left) for row in found.rows], found.left)


def test_refused_values_are_left_by_a_repair() -> None:
    cells = [Cell("f", "a", "wrong"), Cell("f", "a", "refused")]
    differences = [
        Difference(DifferenceKind.WRONG, CellChange(cells[0], 1, 2), StoredCell(1, 3)),
        Difference(DifferenceKind.REFUSED, CellChange(cells[1], 1, 2), None, "too <large>\0"),
    ]
    done = VerifyResult(cells=2, differences=2, nulls={("f", "a"): (1, 2), ("f", "b"): (0, 2)})
    found = comparison_of("dash", ComparisonResult(NOW, 5, differences, {"wrong": 1, "refused": 1}, done), OPEN)

    assert not isinstance(found, Missing)
    assert (1, "differs", [0.5, 0.0]) == (found.repairable, found.word, [one.share for one in found.nulls])
    assert [("3", "2"), ("-", "too <large>\\u0000")] == [(one.stored, one.current) for one in found.differences]


def test_failed_comparison_says_why_in_its_place() -> None:
    found = comparison_of("dash", ComparisonResult(NOW, 5, fault="it is away"), OPEN)

    assert isinstance(found, Missing)
    assert ("it is away", NOW) == (found.why, found.since_ms)


def test_values_of_a_group_say_which_record_wrote_them() -> None:
    cells = [GroupCell("a", "1", 5), GroupCell("b", "2", 6), GroupCell("c", "3", 4), GroupCell("d", "4", -1)]

    assert ["this record", "a newer record", "an older record", ""] == [one.age for one in stored_group("s", cells, 5, OPEN).cells]
    assert {""} == {one.age for one in stored_group("s", cells, None, OPEN).cells}
