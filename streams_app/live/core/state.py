"""The state of a view on one page: what its shards hold together, and the message that shows it (pure).

A shard is one partition of the source. The message is whole: it replaces whatever was shown before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import orjson

from streams_app.settings.live import LiveView

BEHIND_MS: Final = 10_000
"""A shard whose clock is older than this may hold what has expired, and lack what has happened since."""

StateName = Literal["ok", "behind", "incomplete", "reading"]


class Item(NamedTuple):
    """An item as a shard holds it.

    Attributes:
        item: Its name.
        time_ms: Newest of the times it was put with.
        payload: JSON of what is shown of it; empty for a count.
    """

    item: str
    time_ms: int
    payload: bytes = b""

    @property
    def order(self) -> tuple[int, bytes]:
        """Items of one time stand in the order of their bytes, as Redis has them."""
        return self.time_ms, self.item.encode()


@dataclass(frozen=True, slots=True)
class ShardHead:
    """The marks of a shard.

    Attributes:
        token: Of its owner; another one comes after every loss.
        seq: Number of its last change under that token: (token, seq) names one state.
        fence: Highest offset that is applied.
        clock_ms: The shard holds what is true at this moment.
        is_reading: Whether it is still read from Kafka: what it holds was never shown by anybody.
        whole_ms: Before this moment something is missing that retention has removed; 0: nothing is.
        partitions: How many partitions its source has.
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
    """What a shard holds of one page.

    Attributes:
        version: Changes with whatever is held; "" where nothing is. It counts under the token of the shard alone.
        count: Number of items.
        items: The newest ones, newest first; none for a count.
    """

    version: str = ""
    count: int = 0
    items: tuple[Item, ...] = ()


EMPTY_PAGE: Final = ShardPage()


@dataclass(frozen=True, slots=True)
class ViewState:
    """What a page shows of one view.

    Attributes:
        view: Its name.
        kind: ``count``, ``list`` or ``presence``.
        state: ``ok``; ``behind``: it is that of ``since_ms``; ``incomplete``: what happened before ``since_ms`` may be missing;
            ``reading``: nothing is known, and the page keeps what it showed before.
        since_ms: See ``state``; None where it says nothing.
        expiry_ms: How long an item is shown.
        count: Number of items; None while reading, as for all below.
        more: Whether there are more than ``count`` says, as no more are kept.
        items: The newest ones of a list, newest first; None for other kinds.
        people: Who has the page open; None unless the view tells.
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
        """As it is sent; payloads are embedded as the JSON they are. While ``reading`` there are no values."""
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
        """The message, on one line."""
        return orjson.dumps(self.to_dict())


def reading(view: LiveView) -> ViewState:
    """Return the state of a view of which nothing is known."""
    return ViewState(view.name, view.kind, "reading", view.expiry_ms)


def state_of(heads: Sequence[ShardHead | None], now_ms: int, expiry_ms: int) -> tuple[StateName, int | None]:
    """How true a view is, and since when.

    Args:
        heads: Of all its shards; None for one that does not exist.
        now_ms: By the clock of Redis.
        expiry_ms: Of the view.

    Returns:
        See :class:`ViewState`.
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
    """What the shards of a view hold together.

    Args:
        view: The view, of a topic.
        heads: As for :func:`state_of`.
        pages: What each shard holds of the page, in the same order.
        now_ms: By the clock of Redis.
    """
    state, since_ms = state_of(heads, now_ms, view.expiry_ms)
    if state == "reading":
        return reading(view)
    count = sum(page.count for page in pages)
    more = any(page.count >= view.keeps for page in pages)
    items = newest(pages, view.show) if view.kind == "list" else None
    return ViewState(view.name, view.kind, state, view.expiry_ms, since_ms, count, more, items)


def newest(pages: Sequence[ShardPage], most: int) -> tuple[Item, ...]:
    """The newest items of several shards, newest first; of an item that two of them hold the newer one."""
    found: dict[str, Item] = {}
    for page in pages:
        for item in page.items:
            present = found.get(item.item)
            if present is None or present.time_ms < item.time_ms:
                found[item.item] = item
    return tuple(sorted(found.values(), key=lambda item: item.order, reverse=True)[:most])
