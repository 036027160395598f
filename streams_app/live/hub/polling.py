"""Reads the open pages of live views of topics from Redis; it reads whole states, not changes. Presence views are not read here.

The heads of all shards, which are their metadata, are read in one round trip. A shard is polled if (token, seq) of its head has
changed, or if a page is new. If the poll of a shard fails, its new head is not used either, because the newer clock would make old
values look current.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from redis.asyncio import Redis

from streams_app.delivery.scripts import Scripts
from streams_app.live.core.state import EMPTY_PAGE, ShardHead, ShardPage, ViewState, merged, reading, state_of
from streams_app.live.store.keys import ViewKeys, view_keys
from streams_app.live.store.view_store import PollReply, ViewReader, heads_of
from streams_app.settings.live import LiveView

PAGES_A_SCRIPT: Final = 500


class _Shard:
    """The head and the open pages of one shard, as of its last poll."""

    def __init__(self, keys: ViewKeys) -> None:
        self.keys = keys
        self.head: ShardHead | None = None
        self.pages: dict[str, ShardPage] = {}
        self._polled: tuple[str, str] | None = None

    def forget(self) -> None:
        self._polled = None

    async def update(self, reader: ViewReader, head: ShardHead | None, pages: Collection[str]) -> set[str]:
        """Poll the shard if it may have changed; return the pages that have changed, none while the shard is being rebuilt."""
        if head is None or head.is_reading:
            self.head, self._polled, self.pages = head, None, {}
            return set()
        if self._polled == (head.token, head.seq) and all(page in self.pages for page in pages):
            self.head = head
            self.pages = {page: self.pages[page] for page in pages}
            return set()
        return await self._poll(reader, pages)

    async def _poll(self, reader: ViewReader, pages: Collection[str]) -> set[str]:
        token = self._polled[0] if self._polled else ""
        first: PollReply | None = None
        found: dict[str, ShardPage] = {}
        for part in _parts(pages):
            known = {page: self.pages[page].version if page in self.pages else "" for page in part}
            polled = await reader.poll(self.keys, known, token)
            if polled is None:
                return await self.update(reader, None, pages)
            if first is not None and polled.head.token != first.head.token:
                # The owner has changed between two parts, and versions of two tokens cannot be compared.
                self.forget()
                return await self._poll(reader, pages)
            found |= polled.pages
            # The head of the first part is used: its clock is the oldest, and the content of all pages is at least that new.
            first = first or polled
        if first is None:
            return set()
        before, self.pages = self.pages, {page: found.get(page) or self.pages.get(page, EMPTY_PAGE) for page in pages}
        self.head, self._polled = first.head, (first.head.token, first.head.seq)
        return {page for page in pages if self.pages[page] != before.get(page)}


def _parts(pages: Iterable[str]) -> Iterable[list[str]]:
    left = iter(pages)
    while part := list(islice(left, PAGES_A_SCRIPT)):
        yield part


class ViewSnapshot:
    """The open pages of one view of a topic, as of the last poll of each shard."""

    def __init__(self, app_id: str, view: LiveView, reader: ViewReader) -> None:
        self._app_id = app_id
        self.view = view
        self._reader = reader
        self.shards = [self._shard(0)]

    def _shard(self, partition: int) -> _Shard:
        return _Shard(view_keys(self._app_id, self.view.name, self.view.source, partition))

    def resize(self, heads: Sequence[ShardHead | None]) -> bool:
        """Adopt the number of partitions that the metadata of the first shard has; return whether the number has changed.

        If the first shard does not exist, the number stays as it is.
        """
        partitions = max(1, heads[0].partitions) if heads[0] is not None else len(self.shards)
        if partitions == len(self.shards):
            return False
        self.shards = [*self.shards, *map(self._shard, range(len(self.shards), partitions))][:partitions]
        return True

    async def update(self, heads: Sequence[ShardHead | None], pages: Collection[str], changed: set[tuple[str, str]]) -> None:
        """Poll all shards that may have changed. Their heads were just read.

        A pair (view, page) is added to ``changed`` for each page whose content has changed, even if the poll of another shard
        fails.

        Raises:
            Exception: The first error of a shard. The results of other shards are used.
        """
        polls = (shard.update(self._reader, head, pages) for shard, head in zip(self.shards, heads, strict=True))
        failures: list[BaseException] = []
        for outcome in await asyncio.gather(*polls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                failures.append(outcome)
            else:
                changed |= {(self.view.name, page) for page in outcome}
        if failures:
            raise failures[0]

    @property
    def heads(self) -> list[ShardHead | None]:
        """Metadata of each shard as of its last poll; None for a shard that did not exist."""
        return [shard.head for shard in self.shards]

    def state(self, page: str, now_ms: int) -> ViewState:
        """Return the merged state of a page; ``reading`` until all shards have been polled for it."""
        if not all(page in shard.pages for shard in self.shards):
            return reading(self.view)
        return merged(self.view, self.heads, [shard.pages[page] for shard in self.shards], now_ms)

    def newest_ms(self, page: str) -> int:
        """Return the time of the newest item of a page, in ms; 0 if it has none."""
        known = [shard.pages.get(page, EMPTY_PAGE).items for shard in self.shards]
        return max((items[0].time_ms for items in known if items), default=0)

    @property
    def as_of_ms(self) -> int:
        """Time in ms at which the values of all shards were current; 0 if a shard was not polled yet or does not exist."""
        return min((head.clock_ms if head is not None else 0) for head in self.heads)

    def status(self, now_ms: int) -> tuple[str, int | None]:
        return state_of(self.heads, now_ms, self.view.expiry_ms)


def _reader(view: LiveView, redis: Redis, scripts: Scripts) -> ViewReader:
    # The newest item is also read for a count, because its time gives the delay from the record to the browser.
    is_list = view.kind == "list"
    return ViewReader(redis, scripts, view.show if is_list else 1, has_data=is_list)


class Poller:
    """Reads the open pages of live views of topics from Redis, and finds which of them have changed.

    Await each call of :meth:`poll_once` before the next one: if two calls overlap, changes may be lost.
    """

    def __init__(self, app_id: str, views: Iterable[LiveView], redis: Redis, scripts: Scripts) -> None:
        self._redis = redis
        self._changed: set[tuple[str, str]] = set()
        self.views = {view.name: ViewSnapshot(app_id, view, _reader(view, redis, scripts)) for view in views}

    async def poll_once(self, wanted: Mapping[str, Collection[str]]) -> tuple[int, set[tuple[str, str]]]:
        """Read the heads of the requested views, and the open pages of shards that have changed.

        Returns:
            The clock of Redis in ms, and a pair (view, page) for each page whose content has changed since the last successful
            call.

        Raises:
            RedisError: A view could not be read. Changes that this call has found in other views are returned by the next
                successful call.
        """
        views = {name: self.views[name] for name in wanted if name in self.views}
        now_ms, heads = await self._heads(views.values())
        if any([view.resize(heads[name]) for name, view in views.items()]):
            now_ms, heads = await self._heads(views.values())
        updates = (view.update(heads[name], wanted[name], self._changed) for name, view in views.items())
        for outcome in await asyncio.gather(*updates, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        changed, self._changed = self._changed, set()
        return now_ms, changed

    async def _heads(self, views: Iterable[ViewSnapshot]) -> tuple[int, dict[str, list[ShardHead | None]]]:
        shards = [(view.view.name, shard.keys) for view in views for shard in view.shards]
        now_ms, heads = await heads_of(self._redis, [keys for _, keys in shards])
        found: dict[str, list[ShardHead | None]] = {}
        for (name, _), head in zip(shards, heads, strict=True):
            found.setdefault(name, []).append(head)
        return now_ms, found

    def forget(self) -> None:
        """Make the next poll read all open pages, even if the shards have not changed."""
        for view in self.views.values():
            for shard in view.shards:
                shard.forget()
