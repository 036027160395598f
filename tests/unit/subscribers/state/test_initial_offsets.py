"""In which partitions an at-most-once subscriber may get an initial offset although it is not new."""

from __future__ import annotations

import pytest

from streams_app.delivery.batch import TP
from streams_app.subscribers.state.initial_offsets import were_added

PAID = [TP("paid", number) for number in range(6)]
REPLAYED = [TP("again", number) for number in range(4)]


@pytest.mark.parametrize(
    ("missing", "committed", "expected"),
    [
        (PAID[4:], [*PAID[:4], *REPLAYED], True),
        ([*PAID[4:], REPLAYED[3]], [*PAID[:4], *REPLAYED[:3]], True),
        ([PAID[3]], [*PAID[:3], *PAID[4:], *REPLAYED], False),
        ([PAID[5], REPLAYED[0]], [*PAID[:5], *REPLAYED[1:]], False),
        (PAID, REPLAYED, False),
        (PAID, [], False),
    ],
    ids=["the last ones", "of both topics", "one between", "one of two", "a whole topic", "all"],
)
def test_partitions_are_new_if_all_committed_ones_have_lower_numbers(
    missing: list[TP], committed: list[TP], expected: bool
) -> None:
    assert expected == were_added(missing, committed)
