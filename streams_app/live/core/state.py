"""The state of one page of a live view, merged from all partitions, and the message that sends it to browsers (pure).

A *page* is the name by which a view groups its items, and for which browsers ask. A *shard* is the state of one partition of the
source. Each message contains the whole state of a page, and so replaces the previous message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import orjson

from streams_app.settings.live import LiveView

BEHIND_MS: Final = 10_000
"""Maximum age of a shard's clock in ms. If the clock is older, the shard may contain expired items and lack new ones."""

StateName = Literal["ok", "behind", "incomplete", "reading"]


class Item(NamedTuple):
    """An item of a page, as one shard stores it.

    Attributes:
        time_ms: Newest timestamp of the records that put the item.
        payload: Payload as JSON; empty unless the view is a list.
    """

    item: str
    time_ms: int
    payload: bytes = b""

    @property
    def order(self) -> tuple[int, bytes]:
        """Sort key: time, then bytes of the name, as Redis orders a sorted set."""
        return self.time_ms, self.item.encode()


@dataclass(frozen=True, slots=True)
class ShardHead:
    """Metadata of a shard: owner, position, clock and completeness.

    Attributes:
        token: Token of the owner; another claim or a lost state changes it.
        seq: Number of the last change under this token. The pair (token, seq) identifies one state.
        fence: Highest offset that is applied.
        clock_ms: The content is the state of the topic as of this time.
        is_reading: Whether the topic is still being read for the first time; until then, browsers do not receive the content.
        whole_ms: Retention may have removed events before they were read, so items may be missing until this time, when all of them
            would have expired. 0: nothing is missing.
        partitions: Number of partitions of the source.
    """

    token: str
    seq: str
    fence: int
    clock_ms: int
    is_reading: bool
    whole_ms: int
    partitions: int


@dataclass(frozen=True, slots=True)
class ShardPage:
    """The content of one page in a shard.

    Attributes:
        version: Text that changes with the content; "" if the page is empty. Versions under different tokens cannot be compared.
        count: Number of items.
        items: The newest items, newest first, at most as many as were requested.
        has_dropped: Whether the shard has dropped items of the page, because it had more than ``max_items``, and not all of them
            would have expired by now.
    """

    version: str = ""
    count: int = 0
    items: tuple[Item, ...] = ()
    has_dropped: bool = False


EMPTY_PAGE: Final = ShardPage()


@dataclass(frozen=True, slots=True)
class ViewState:
    """The state of one page of a view, as a browser receives it.

    Attributes:
        view: Name of the view.
        kind: ``count``, ``list`` or ``presence``.
        state: ``ok`` if the values are current; ``behind`` if they are those of ``since_ms``; ``incomplete`` if events before
            ``since_ms`` may be missing. With ``reading``, the message has no values, and browsers keep showing the previous ones.
        since_ms: Time for ``behind`` and ``incomplete``; None with other states.
        expiry_ms: Time for which an item is shown.
        count: Number of items, at most ``max_items``, or of open tabs for ``presence``; None while reading.
        more: Whether there may be more than ``count`` items, because the page has, or had, more than ``max_items``.
        items: The newest items of a list, newest first; None for other kinds, and while reading.
        people: Names of the users who have the page open; None while reading, or if the view does not set ``people``.
    """

    view: str
    kind: Literal["count", "list", "presence"]
    state: StateName
    expiry_ms: int
    since_ms: int | None = None
    count: int | None = None
    more: bool = False
    items: tuple[Item, ...] | None = None
    people: tuple[str, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON object that browsers receive. Payloads are embedded as JSON.

        If the state is ``reading``, the fields ``count``, ``more``, ``items`` and ``people`` are left out.
        """
        found: dict[str, Any] = {
            "view": self.view, "kind": self.kind, "state": self.state, "since_ms": self.since_ms, "expiry_ms": self.expiry_ms,
        }  # fmt: skip
        if self.count is None:
            return found
        found |= {"count": self.count, "more": self.more}
        if self.items is not None:
            found["items"] = [
                {
                    "item": item,
                    "time_ms": time_ms,
                    "expires_ms": time_ms + self.expiry_ms,
                    "data": orjson.Fragment(payload or b"null"),
                }
                for item, time_ms, payload in self.items
            ]
        if self.people is not None:
            found["people"] = list(self.people)
        return found

    def to_json(self) -> bytes:
        return orjson.dumps(self.to_dict())


def reading(view: LiveView) -> ViewState:
    """Return the state of a view that is being rebuilt: ``reading``, without values."""
    return ViewState(view.name, view.kind, "reading", view.expiry_ms)


def state_of(heads: Sequence[ShardHead | None], now_ms: int, expiry_ms: int) -> tuple[StateName, int | None]:
    """Return ``state`` and ``since_ms`` of a view, as :class:`ViewState` defines them; None is the head of a missing shard."""
    present = [head for head in heads if head is not None]
    if not present or len(present) < len(heads) or any(head.is_reading for head in present):
        return "reading", None
    oldest_ms = min(head.clock_ms for head in present)
    if now_ms - oldest_ms > BEHIND_MS:
        return "behind", oldest_ms
    whole_ms = max(head.whole_ms for head in present)
    return ("incomplete", whole_ms - expiry_ms) if now_ms < whole_ms else ("ok", None)


def merged(view: LiveView, heads: Sequence[ShardHead | None], pages: Sequence[ShardPage], now_ms: int) -> ViewState:
    """Merge the shards of a view into the state of one page; ``pages`` are in the order of ``heads``."""
    state, since_ms = state_of(heads, now_ms, view.expiry_ms)
    if state == "reading":
        return reading(view)
    count = sum(page.count for page in pages)
    # After items were dropped and others removed, the count may be too low, although it is below the maximum.
    more = count > view.keeps or any(page.has_dropped for page in pages)
    items = newest(pages, min(view.show, view.keeps)) if view.kind == "list" else None
    return ViewState(view.name, view.kind, state, view.expiry_ms, since_ms, min(count, view.keeps), more, items)


def newest(pages: Sequence[ShardPage], most: int) -> tuple[Item, ...]:
    """Return the newest items of several shards, newest first. If two shards have the same item, the newer one counts."""
    found: dict[str, Item] = {}
    for page in pages:
        for item in page.items:
            present = found.get(item.item)
            if present is None or present.time_ms < item.time_ms:
                found[item.item] = item
    return tuple(sorted(found.values(), key=lambda item: item.order, reverse=True)[:most])
