"""The state of a view on one page: the merged state of its shards, and the message that contains it (pure).

A shard is one partition of the source. A message contains the whole state and replaces the previous message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import orjson

from streams_app.settings.live import LiveView

BEHIND_MS: Final = 10_000
"""If the clock of a shard is older than this, it may contain expired items and lack new ones."""

StateName = Literal["ok", "behind", "incomplete", "reading"]


class Item(NamedTuple):
    """An item of a page, as one shard stores it.

    Attributes:
        item: Name of the item.
        time_ms: Newest timestamp of its puts.
        payload: Its payload as JSON; empty for a count.
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
        token: Token of its owner; it changes after every loss of state.
        seq: Number of its last change under that token; (token, seq) identifies one state.
        fence: Highest offset that is applied.
        clock_ms: The time at which the content of the shard is correct.
        is_reading: Whether the shard is still being read from Kafka; no page has shown its content yet.
        whole_ms: Time until which the content lacks events that retention removed; 0: it lacks none.
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
        version: Changes with the content; "" if the page is empty. Versions under different tokens cannot be compared.
        count: Number of items.
        items: The newest items, newest first, up to the requested number.
    """

    version: str = ""
    count: int = 0
    items: tuple[Item, ...] = ()


EMPTY_PAGE: Final = ShardPage()


@dataclass(frozen=True, slots=True)
class ViewState:
    """The state of one view on one page.

    Attributes:
        view: Name of the view.
        kind: ``count``, ``list`` or ``presence``.
        state: ``ok``; ``behind``: the values are those of ``since_ms``; ``incomplete``: events before ``since_ms`` may be missing;
            ``reading``: the message has no values, and the page still shows the previous ones.
        since_ms: Time that ``state`` refers to; None if it refers to none.
        expiry_ms: Time for which an item is shown.
        count: Number of items; None while reading.
        more: Whether there may have been more than ``count`` items, because a shard has the maximum; it drops the oldest beyond.
        items: The newest items of a list, newest first; None for other kinds, and while reading.
        people: Names of the users who have the page open; None while reading, and unless the view sets
            ``people``.
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
        """Return field → value as browsers receive them; payloads are embedded JSON. The state ``reading`` has no values."""
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
        """Return the JSON object that browsers receive, see :meth:`to_dict`."""
        return orjson.dumps(self.to_dict())


def reading(view: LiveView) -> ViewState:
    """Return the state of a view that is being rebuilt: it has the name ``reading`` and no values."""
    return ViewState(view.name, view.kind, "reading", view.expiry_ms)


def state_of(heads: Sequence[ShardHead | None], now_ms: int, expiry_ms: int) -> tuple[StateName, int | None]:
    """Return the name of a view's state (``ok``, ``behind``, …), and the time that this state refers to.

    Args:
        heads: Heads of all shards; None for a shard that does not exist.
        now_ms: Clock of Redis.
        expiry_ms: Expiry of the view.

    Returns:
        ``state`` and ``since_ms`` of :class:`ViewState`.
    """
    present = [head for head in heads if head is not None]
    if not present or len(present) < len(heads) or any(head.is_reading for head in present):
        return "reading", None
    oldest_ms = min(head.clock_ms for head in present)
    if now_ms - oldest_ms > BEHIND_MS:
        return "behind", oldest_ms
    whole_ms = max(head.whole_ms for head in present)
    return ("incomplete", whole_ms - expiry_ms) if now_ms < whole_ms else ("ok", None)


def merged(view: LiveView, heads: Sequence[ShardHead | None], pages: Sequence[ShardPage], now_ms: int) -> ViewState:
    """Merge the shards of a view into the state of one page.

    Args:
        view: A view of a topic.
        heads: Heads of all shards; None for a shard that does not exist.
        pages: The page in each shard, in the same order.
        now_ms: Clock of Redis.
    """
    state, since_ms = state_of(heads, now_ms, view.expiry_ms)
    if state == "reading":
        return reading(view)
    count = sum(page.count for page in pages)
    more = any(page.count >= view.keeps for page in pages)
    items = newest(pages, view.show) if view.kind == "list" else None
    return ViewState(view.name, view.kind, state, view.expiry_ms, since_ms, count, more, items)


def newest(pages: Sequence[ShardPage], most: int) -> tuple[Item, ...]:
    """Return the newest items of several shards, newest first; if two shards have the same item, the newer one counts."""
    found: dict[str, Item] = {}
    for page in pages:
        for item in page.items:
            present = found.get(item.item)
            if present is None or present.time_ms < item.time_ms:
                found[item.item] = item
    return tuple(sorted(found.values(), key=lambda item: item.order, reverse=True)[:most])
