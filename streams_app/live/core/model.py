"""Simple model of the state of one partition of a view, as the Redis scripts maintain it (pure).

Tests compare the scripts on a real Redis with this model; :class:`streams_app.testing.ViewTester` evaluates declarations with it.
"""

from __future__ import annotations

from collections.abc import Iterable

from streams_app.live.core.record_effects import Put, Removal
from streams_app.live.core.state import Item, ShardPage


def items_by_page(meanings: Iterable[Put | Removal | None], clock_ms: int, expiry_ms: int, keep: int) -> dict[str, list[Item]]:
    """Return the items of each page, oldest first, once records with these effects are applied. Pages without items are left out.

    Args:
        meanings: The effects of all records of the log, in log order; None for a record without an effect.
        clock_ms: Time at which items are evaluated: those that have expired by then are left out.
        expiry_ms: Time after which an item expires.
        keep: Maximum number of items of a page; the newest are kept.
    """
    pages: dict[str, dict[str, Item]] = {}
    for one in meanings:
        if isinstance(one, Put):
            present = pages.setdefault(one.page, {}).get(one.item.item)
            if present is None or present.time_ms <= one.item.time_ms:
                pages[one.page][one.item.item] = one.item
        elif isinstance(one, Removal):
            pages.get(one.page, {}).pop(one.item, None)
    found = {
        page: sorted((item for item in items.values() if item.time_ms + expiry_ms > clock_ms), key=lambda item: item.order)[-keep:]
        for page, items in pages.items()
    }
    return {page: items for page, items in found.items() if items}


def shard_page(items: list[Item], show: int) -> ShardPage:
    """Convert the items of a page, oldest first, to a :class:`.ShardPage` with the newest ``show`` items."""
    return ShardPage("model", len(items), tuple(reversed(items[-show:])) if show else ())
