"""How much of a log is searched for an event."""

from __future__ import annotations

from typing import Any

import pytest

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.errors import NewerFormatError
from streams_app.operations.explain_event import EventLog, first_of, last_of

LARGE, SMALL, NONE = (TP("orders", number) for number in range(3))
RANGES = {LARGE: (100, 200), SMALL: (5, 10), NONE: (7, 7)}


@pytest.mark.parametrize(
    ("most", "first", "last"),
    [
        (1_000, RANGES, RANGES),
        (25, {LARGE: (100, 120), SMALL: (5, 10), NONE: (7, 7)}, {LARGE: (180, 200), SMALL: (5, 10), NONE: (7, 7)}),
        (4, {LARGE: (100, 102), SMALL: (5, 7), NONE: (7, 7)}, {LARGE: (198, 200), SMALL: (8, 10), NONE: (7, 7)}),
        (-3, {LARGE: (100, 100), SMALL: (5, 5), NONE: (7, 7)}, {LARGE: (200, 200), SMALL: (10, 10), NONE: (7, 7)}),
    ],
)
def test_each_partition_has_its_share_of_the_search_limit(
    most: int, first: dict[TP, tuple[int, int]], last: dict[TP, tuple[int, int]]
) -> None:
    assert (first, last) == (first_of(RANGES, most), last_of(RANGES, most))


def test_commit_of_a_newer_version_is_not_explained() -> None:
    unused: Any = None
    with pytest.raises(NewerFormatError, match="the commit of orders-0 has format 99"):
        EventLog(unused, unused, unused, {LARGE: PartitionCommit(5, "@99;mail")}, RANGES, {})
