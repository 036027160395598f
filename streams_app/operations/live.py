"""Functions of the commands for live views.

They read the state of a page as the hub sends it to browsers, explain that state, and remove the stored state of a live view.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from redis.asyncio import Redis

from streams_app.formatting import counted, escaped, shown, span, time_text
from streams_app.live.core.state import EMPTY_PAGE, Item, ShardHead, ShardPage, StateName, ViewState, merged, newest, state_of
from streams_app.live.store.keys import (
    ViewKeys,
    presence_keys,
    presence_pattern,
    view_keys,
)
from streams_app.live.store.view_store import LiveScripts, ViewReader, heads_of
from streams_app.operations.groups import redis_of
from streams_app.settings import LiveView, Settings

MAX_SHOWN: Final = 1_000
"""Default maximum number of items of a page that are read from each partition."""


MAX_COUNTED: Final = 20_000
"""Default maximum number of pages whose items are counted."""

PAGES_A_STEP: Final = 1_000
SCAN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class PageOfView:
    """The state of one page of one live view.

    Attributes:
        state: The state that a hub sends to browsers.
        why: Why the state is not ``ok``; empty if it is.
        items: Items of the page, newest first. They are present even if the view only counts. For presence, the items are open tabs
            with their expiry times.
        next_ms: Time at which the next item expires; None: there are no items.
        now_ms: Time of Redis when the page was read.
    """

    view: LiveView
    state: ViewState
    why: str
    items: tuple[Item, ...]
    next_ms: int | None
    now_ms: int


async def page_of_views(settings: Settings, page: str, names: Sequence[str] = (), most: int = MAX_SHOWN) -> list[PageOfView]:
    """Read the state of a page in each of the named live views; if none is named, in all."""
    views = [settings.live_view(name) for name in names] or list(settings.live)
    async with redis_of(settings) as redis:
        return [await _page_of(redis, settings.app_id, view, page, most) for view in views]


async def _page_of(redis: Redis, app_id: str, view: LiveView, page: str, most: int) -> PageOfView:
    if not view.is_of_topic:
        return await _present(redis, app_id, view, page, most)
    shards = await shards_of(redis, app_id, view)
    reader = ViewReader(redis, LiveScripts(redis), most)
    polled = await asyncio.gather(*(reader.poll(keys, {page: ""}) for keys in shards))
    now_ms, _ = await heads_of(redis, [])
    heads = [None if one is None else one.head for one in polled]
    pages = [EMPTY_PAGE if one is None else one.pages[page] for one in polled]
    oldest = await asyncio.gather(*(redis.zrange(f"{keys.items_prefix}{page}", 0, 0, withscores=True) for keys in shards))
    times = [int(found[0][1]) for found in oldest if found]
    state = merged(view, heads, _as_shown(view, pages), now_ms)
    return PageOfView(
        view, state, why(heads, now_ms, view.expiry_ms), newest(pages, min(most, view.keeps)),
        min(times) + view.expiry_ms if times else None, now_ms,
    )  # fmt: skip


def _as_shown(view: LiveView, pages: Sequence[ShardPage]) -> list[ShardPage]:
    """Return the page in each partition with only the items that browsers receive."""
    most = view.show if view.kind == "list" else 0
    return [replace(page, items=page.items[:most]) for page in pages]


async def shards_of(redis: Redis, app_id: str, view: LiveView) -> list[ViewKeys]:
    """Return the Redis keys of each shard of a live view; only those of shard 0 until a worker has stored the number of shards."""
    first = view_keys(app_id, view.name, view.source, 0)
    _, (head,) = await heads_of(redis, [first])
    count = 1 if head is None else max(1, head.partitions)
    return [view_keys(app_id, view.name, view.source, number) for number in range(count)]


async def _present(redis: Redis, app_id: str, view: LiveView, page: str, most: int) -> PageOfView:
    here = f"{presence_keys(app_id, view.name).here_prefix}{page}"
    now_ms, _ = await heads_of(redis, [])
    found: Any = await redis.zrange(here, f"({now_ms}", "+inf", byscore=True, withscores=True)
    tabs = tuple(Item(tab.decode(errors="backslashreplace"), int(until_ms)) for tab, until_ms in reversed(found))
    state = ViewState(view.name, view.kind, "ok", view.expiry_ms, count=len(tabs))
    return PageOfView(view, state, "", tabs[:most], tabs[-1].time_ms if tabs else None, now_ms)


def why(heads: Sequence[ShardHead | None], now_ms: int, expiry_ms: int) -> str:
    """Describe why the state of a live view is not ``ok``; an empty text if it is (pure).

    Args:
        heads: Metadata of each shard, in the order of partitions; None for a shard that does not exist.
        now_ms: Clock of Redis.
        expiry_ms: Time from the timestamp of an item to its removal.
    """
    state, since_ms = state_of(heads, now_ms, expiry_ms)
    if state == "reading":
        missing = [number for number, head in enumerate(heads) if head is None]
        if missing and len(missing) == len(heads):
            return "no worker has read its source yet, or Redis was wiped and none runs"
        being_read = [number for number, head in enumerate(heads) if head is not None and head.is_reading]
        parts = [f"{counted(len(being_read), 'partition')} read anew"] if being_read else []
        parts += [f"{counted(len(missing), 'partition')} not read yet"] if missing else []
        return f"{' and '.join(parts)} of {len(heads)}: a worker has to read them to their end first"
    if state == "behind" and since_ms is not None:
        behind = [number for number, head in enumerate(heads) if head is not None and now_ms - head.clock_ms == now_ms - since_ms]
        causes = "no worker runs, it lags, a transaction in its source is open, or Redis is full"
        return f"partition {behind[0]} is {span(now_ms - since_ms)} behind: {causes}"
    if state == "incomplete":
        return "retention had removed events that were to be shown: raise retention.ms of the source above the expiry"
    return ""


@dataclass(frozen=True, slots=True)
class ViewContents:
    """What a live view holds, of all pages.

    Attributes:
        state: State of the view, which is the same for all of its pages.
        why: Why the state is not ``ok``; empty if it is.
        partitions: Number of partitions of the source whose state was read; 0 for ``presence``.
        pages: Number of pages with items.
        largest: Pages with the most items, and their numbers.
        read: Number of pages whose items were counted.
        is_whole: Whether these are all pages.
    """

    state: StateName
    why: str
    partitions: int
    pages: int
    largest: tuple[tuple[str, int], ...]
    read: int
    is_whole: bool


async def contents_of_view(settings: Settings, view: LiveView, most: int, limit: int = MAX_COUNTED) -> ViewContents:
    """Count the items of the pages of a live view, of at most ``limit`` pages, in bounded steps.

    Raises:
        TryAgainError: Redis does not answer.
        ConfigurationError: It rejects the connection.
    """
    counts: Counter[str] = Counter()
    async with redis_of(settings) as redis:
        if not view.is_of_topic:
            return await _present_pages(redis, settings.app_id, view, most, limit)
        shards = await shards_of(redis, settings.app_id, view)
        now_ms, heads = await heads_of(redis, shards)
        read, total = 0, 0
        for keys in shards:
            size = await redis.zcard(keys.due)
            last = min(size, max(1, limit // len(shards)))
            for begin in range(0, last, PAGES_A_STEP):
                names: Any = await redis.zrange(keys.due, begin, min(begin + PAGES_A_STEP, last) - 1)
                read += len(names)
                counts.update(await _counted_items(redis, keys.items_prefix.encode(), names))
            total += size
    state, _ = state_of(heads, now_ms, view.expiry_ms)
    is_whole = read >= total
    # A page may have items in several partitions; a page that was read in one of them only has a lower bound.
    return ViewContents(
        state, why(heads, now_ms, view.expiry_ms), len(shards), len(counts) if is_whole else max(total, len(counts)),
        tuple(counts.most_common(most)), read, is_whole,
    )  # fmt: skip


async def _counted_items(redis: Redis, prefix: bytes, names: Sequence[bytes], least: str = "-inf") -> dict[str, int]:
    pipeline = redis.pipeline(transaction=False)
    for name in names:
        pipeline.zcount(prefix + name, least, "+inf")
    sizes = await pipeline.execute() if names else []
    return {name.decode(errors="backslashreplace"): size for name, size in zip(names, sizes, strict=True)}


async def _present_pages(redis: Redis, app_id: str, view: LiveView, most: int, limit: int) -> ViewContents:
    """Count the tabs of pages, by the keys that a scan of Redis finds within :data:`SCAN_SECONDS`."""
    prefix = presence_keys(app_id, view.name).here_prefix.encode()
    names: list[bytes] = []
    is_whole = False
    with suppress(TimeoutError):
        async with asyncio.timeout(SCAN_SECONDS):
            async for key in redis.scan_iter(match=presence_pattern(app_id, view.name), count=MAX_SHOWN):
                if key.startswith(prefix):
                    names.append(key.removeprefix(prefix))
                if len(names) >= limit:
                    break
            else:
                is_whole = True
    now_ms, _ = await heads_of(redis, [])
    counts: Counter[str] = Counter()
    for begin in range(0, len(names), PAGES_A_STEP):
        counts.update(await _counted_items(redis, prefix, names[begin : begin + PAGES_A_STEP], f"({now_ms}"))
    present = Counter({name: count for name, count in counts.items() if count})
    return ViewContents("ok", "", 0, len(present), tuple(present.most_common(most)), len(names), is_whole)


def lines_of(found: PageOfView) -> list[str]:
    """Describe the state of a page in a view, as lines of text (pure)."""
    view, state = found.view, found.state
    contents = "nothing to show" if state.count is None else f"{counted(state.count, 'item')}{' or more' if state.more else ''}"
    lines = [f"{view.name} ({view.kind}): {state.state}, {contents}"]
    if found.why:
        lines.append(f"  {found.why}")
    for name, time_ms, payload in found.items:
        until_ms = time_ms + view.expiry_ms if view.is_of_topic else time_ms
        line = f"  {shown(name)}  leaves in {span(until_ms - found.now_ms)}"
        line += f"  of {time_text(time_ms)}" if view.is_of_topic else ""
        lines.append(f"{line}  {escaped(payload.decode(errors='backslashreplace'))}".rstrip())
    if found.next_ms is not None:
        lines.append(f"  the next one leaves in {span(found.next_ms - found.now_ms)}")
    return lines
