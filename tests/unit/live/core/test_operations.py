"""How a part of a log changes a page."""

from __future__ import annotations

import pytest

from streams_app.live.core.operations import PageChange
from streams_app.live.core.state import Item


@pytest.mark.parametrize("came_back_ms", [5, 9, 12])
def test_removed_item_that_returns_is_still_removed_first(came_back_ms: int) -> None:
    change = PageChange()
    change.put(Item("x", 9))
    change.remove("x")
    change.put(Item("x", came_back_ms))

    assert list(change.removed) == ["x"]  # otherwise it keeps the time from an earlier part
    assert change.puts == {"x": Item("x", came_back_ms)}


def test_item_put_before_its_removal_is_dropped() -> None:
    change = PageChange()
    change.put(Item("x", 9))
    change.put(Item("y", 9))
    change.remove("x")

    assert list(change.removed) == ["x"]
    assert change.puts == {"y": Item("y", 9)}
