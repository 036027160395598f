"""What a partition of a view holds, said as simply as it can be (pure).

The scripts are compared with it on a real Redis, and :class:`streams_app.testing.ViewTester` shows what it says.
"""

from __future__ import annotations

from collections.abc import Iterable

from streams_app.live.core.decide import Put, Removal
from streams_app.live.core.state import Item, ShardPage


def items_by_page(meanings: Iterable[Put | Removal | None], clock_ms: int, expiry_ms: int, keep: int) -> dict[str, list[Item]]:
    """Page → its items, oldest first, after a prefix of the log and at a moment; pages that hold nothing are left out.

    Args:
        meanings: What the records of the prefix mean, in the order of the log.
        clock_ms: The moment.
        expiry_ms: An item is gone so long after its time.
        keep: Newest items of a page that are kept.
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
    """A page of the model as a shard shows it."""
    return ShardPage("model", len(items), tuple(reversed(items[-show:])) if show else ())
