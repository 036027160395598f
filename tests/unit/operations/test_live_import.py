"""The messages of an import about a file of any length."""

from __future__ import annotations

from streams_app.operations.live_import import SHOWN_FAULTS, BadLines


def test_bad_lines_are_all_counted_and_only_the_first_are_kept() -> None:
    found = BadLines()
    for number in range(1, 100_001):
        found.add(number, "no JSON")

    assert (100_000, SHOWN_FAULTS) == (found.count, len(found.shown))
    assert "line 1: no JSON" == found.shown[0]
