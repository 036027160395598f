"""The state of a view on a page: when it is current, how several shards are combined, and the message."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from streams_app.live.core.record_effects import Removal
from streams_app.live.core.state import EMPTY_PAGE, Item, ShardHead, ShardPage, ViewState, merged, state_of
from streams_app.settings import LiveView
from streams_app.testing import ViewTester

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
NEWS = LiveView(name="news", kind="list", source="s", page="p", item="i", expiry="1h", show=2, max_items=3, public=True)


def head(clock_ms: int = NOW_MS, *, is_reading: bool = False, whole_ms: int = 0) -> ShardHead:
    return ShardHead("t", "1", 9, clock_ms, is_reading, whole_ms, 2)


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        ([head(), head(NOW_MS - 10_000)], ("ok", None)),
        ([head(), head(NOW_MS - 10_001)], ("behind", NOW_MS - 10_001)),
        ([head(NOW_MS - 10_001), head()], ("behind", NOW_MS - 10_001)),
        ([head(), head(whole_ms=NOW_MS + 1)], ("incomplete", NOW_MS + 1 - HOUR_MS)),
        ([head(), head(whole_ms=NOW_MS)], ("ok", None)),
        ([head(), head(is_reading=True)], ("reading", None)),
        ([head(), None], ("reading", None)),
        ([], ("reading", None)),
    ],
)
def test_state_is_that_of_the_worst_shard(heads: list[ShardHead | None], expected: tuple[str, int | None]) -> None:
    assert expected == state_of(heads, NOW_MS, HOUR_MS)


def test_shards_are_counted_together_and_their_newest_items_come_first() -> None:
    first = ShardPage("1", 3, (Item("a", 5), Item("b", 2)))
    second = ShardPage("1", 2, (Item("c", 5), Item("a", 4)))
    state = merged(NEWS, [head(), head()], [first, second], NOW_MS)

    assert (3, True, (Item("c", 5), Item("a", 5))) == (state.count, state.more, state.items)


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        ([ShardPage("1", 3)], (3, False)),
        ([ShardPage("1", 2), ShardPage("1", 1)], (3, False)),
        ([ShardPage("1", 2), ShardPage("1", 2)], (3, True)),
        ([ShardPage("1", 3), ShardPage("1", 3)], (3, True)),
        ([ShardPage("1", 3, has_dropped=True)], (3, True)),
        ([ShardPage("1", 1, has_dropped=True), EMPTY_PAGE], (1, True)),
        ([EMPTY_PAGE, EMPTY_PAGE], (0, False)),
    ],
)
def test_page_has_at_most_max_items_over_all_partitions(pages: list[ShardPage], expected: tuple[int, bool]) -> None:
    state = merged(NEWS, [head() for _ in pages], pages, NOW_MS)

    assert expected == (state.count, state.more)


def test_list_has_no_more_items_than_max_items() -> None:
    few = NEWS.model_copy(update={"max_items": 1})
    state = merged(few, [head()], [ShardPage("1", 1, (Item("a", 5), Item("b", 2)))], NOW_MS)

    assert (Item("a", 5),) == state.items


def test_more_says_that_items_were_dropped_until_they_would_have_expired() -> None:
    kit = ViewTester(NEWS)
    for minute, item in enumerate("abcd"):
        kit.send({"p": 7, "i": item}, at_ms=kit.now_ms + minute - 10)
        shown = kit.shown("7")
        assert (min(minute + 1, 3), minute == 3) == (shown.count, shown.more)
    kit._meant.append(Removal("7", "c"))
    removed = kit.shown("7")
    kit.advance("1h")
    kit.send({"p": 7, "i": "e"})
    later = kit.shown("7")

    assert (2, True) == (removed.count, removed.more)
    assert (1, False) == (later.count, later.more)


def test_view_being_read_has_no_values() -> None:
    state = merged(NEWS, [head(), None], [ShardPage("1", 3, (Item("a", 5),)), EMPTY_PAGE], NOW_MS)

    assert {"view": "news", "kind": "list", "state": "reading", "since_ms": None, "expiry_ms": HOUR_MS} == state.to_dict()


def test_message_is_one_line_with_unmodified_payloads() -> None:
    state = ViewState("news", "list", "ok", HOUR_MS, count=1, items=(Item("ü", 5, b'{"a":[1]}'),))
    item: dict[str, Any] = {"item": "ü", "time_ms": 5, "expires_ms": 5 + HOUR_MS, "data": {"a": [1]}}

    assert b"\n" not in state.to_json()
    assert [item] == orjson.loads(state.to_json())["items"]


def test_view_tester_shows_a_page_and_expires_and_removes_items() -> None:
    view = LiveView(name="n", kind="list", source="s", page="p", item="i", expiry="1h", remove={"@type": "gone"}, public=True)
    kit = ViewTester(view)
    kit.send({"p": 1, "i": "a"})
    kit.send({"p": 1, "i": "b"}, at_ms=kit.now_ms - 1)
    kit.send({"p": 1})
    kit.send({"p": "1", "i": "a"}, type="gone")
    before = kit.shown("1")
    kit.advance("1h")

    assert (1, ["b"], ["no-item"]) == (
        before.count,
        [one.item for one in before.items or ()],
        [one.reason for one in kit.dead_letters],
    )
    assert 0 == kit.shown("1").count


def test_view_tester_rejects_a_presence_view() -> None:
    with pytest.raises(ValueError, match="takes no events"):
        ViewTester(LiveView(name="here", kind="presence", expiry="60s", public=True))
