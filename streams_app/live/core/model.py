"""Simple model of the state of one partition of a view, as the Redis scripts maintain it (pure).

Tests compare the scripts on a real Redis with this model; :class:`streams_app.testing.ViewTester` evaluates declarations with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from streams_app.live.core.record_effects import Put, Removal
from streams_app.live.core.state import Item, ShardPage


class PageContent(NamedTuple):
    """The content of one page.

    Attributes:
        items: Items, oldest first.
        has_dropped: Whether items were dropped that would not have expired, because the page had more than its maximum.
    """

    items: list[Item]
    has_dropped: bool = False


def contents_by_page(meanings: Iterable[Put | Removal | None], clock_ms: int, expiry_ms: int, keep: int) -> dict[str, PageContent]:
    """Return the content of each page, once records with these effects are applied one by one. Empty pages are left out.

    If a page has dropped items, and others are removed later, the content of a script may differ that applies several records at
    once: removals in its batch then come before the puts.

    Args:
        meanings: The effects of all records of the log, in log order; None for a record without an effect.
        clock_ms: Time at which items are evaluated: those that have expired by then are left out.
        expiry_ms: Time after which an item expires.
        keep: Maximum number of items of a page; the newest are kept.
    """
    pages: dict[str, dict[str, Item]] = {}
    dropped_ms: dict[str, int] = {}
    for one in meanings:
        if isinstance(one, Put):
            items = pages.setdefault(one.page, {})
            present = items.get(one.item.item)
            if present is None or present.time_ms <= one.item.time_ms:
                items[one.item.item] = one.item
            if len(items) > keep:
                oldest = items.pop(min(items.values(), key=lambda item: item.order).item)
                dropped_ms[one.page] = max(oldest.time_ms, dropped_ms.get(one.page, oldest.time_ms))
        elif isinstance(one, Removal):
            pages.get(one.page, {}).pop(one.item, None)
    contents = {
        page: PageContent(
            sorted((item for item in items.values() if item.time_ms + expiry_ms > clock_ms), key=lambda item: item.order),
            page in dropped_ms and dropped_ms[page] + expiry_ms > clock_ms,
        )
        for page, items in pages.items()
    }
    return {page: content for page, content in contents.items() if content.items or content.has_dropped}


def shard_page(content: PageContent, show: int) -> ShardPage:
    """Convert the content of a page to a :class:`.ShardPage` with the newest ``show`` items."""
    newest = tuple(reversed(content.items[-show:])) if show else ()
    return ShardPage("model", len(content.items), newest, content.has_dropped)
