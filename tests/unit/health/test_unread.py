"""How long unread records have waited, from the position of their reader."""

from __future__ import annotations

import pytest

from streams_app.delivery.batch import TP
from streams_app.health.unread import Unread, unread_since

ONE = TP("posts", 0)


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        pytest.param([(5, 5)], None, id="nothing is unread"),
        pytest.param([(4, 5)], 0, id="first observation"),
        pytest.param([(4, 5), (4, 9)], 0, id="more records arrive"),
        pytest.param([(5, 5), (5, 9), (5, 12)], 1, id="the first unread record arrives"),
        pytest.param([(4, 9), (6, 9), (6, 9)], 1, id="the reader moves on"),
        pytest.param([(4, 9), (9, 9), (9, 10)], 2, id="the reader reaches the end in between"),
        pytest.param([(4, 9), None, (4, 9)], 2, id="the partition is revoked in between"),
        pytest.param([(50, 90), (50, 3)], None, id="the log was replaced by a shorter one"),
    ],
)
def test_record_waits_since_its_reader_was_first_observed_before_it(
    ranges: list[tuple[int, int] | None], expected: int | None
) -> None:
    found: dict[TP, Unread] = {}
    for now_ms, each in enumerate(ranges):
        found = unread_since(found, {} if each is None else {ONE: each}, now_ms)

    assert expected == (found[ONE].since_ms if found else None)
