"""Simple model of the state of one partition of a view, as the Redis scripts maintain it (pure).

This module stands alone, because tests compare the scripts on a real Redis with it; :class:`streams_app.testing.ViewTester`
evaluates declarations with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from streams_app.live.core.record_effects import Put, Removal
from streams_app.live.core.state import Item, ShardPage


class PageContent(NamedTuple):
    """The content of one page, the oldest item first; :class:`.ShardPage` explains ``has_dropped``."""

    items: list[Item]
    has_dropped: bool = False


def contents_by_page(meanings: Iterable[Put | Removal | None], clock_ms: int, expiry_ms: int, keep: int) -> dict[str, PageContent]:
    """Return the content of each page at ``clock_ms``, once records are applied one by one in log order. Empty pages are left out.

    If a page has dropped items, and others are removed later, the content of a script may differ that applies several records at
    once: removals in its batch then come before the puts.
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
