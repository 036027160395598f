"""What a hub knows of views of topics: polled from Redis for all open pages at once, whole states and no changes.

The heads of all shards are read in one round trip; a shard is polled where (token, seq) of its head moved, or a page is new. What
a poll that failed would have said is unknown, so nothing of it counts: not the head either, whose clock would make old values look
new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from redis.asyncio import Redis

from streams_app.live.core.state import EMPTY_PAGE, ShardHead, ShardPage, ViewState, merged, reading, state_of
from streams_app.live.store.keys import ViewKeys, view_keys
from streams_app.live.store.view_store import LiveScripts, PollReply, ViewReader, heads_of
from streams_app.settings.live import LiveView

PAGES_A_SCRIPT: Final = 500


class _Shard:
    """What is known of one shard."""

    def __init__(self, keys: ViewKeys) -> None:
        self.keys = keys
        self.head: ShardHead | None = None
        self.pages: dict[str, ShardPage] = {}
        self._polled: tuple[str, str] | None = None

    def forget(self) -> None:
        """Lets the next poll ask for everything."""
        self._polled = None

    async def update(self, reader: ViewReader, head: ShardHead | None, pages: Collection[str]) -> set[str]:
        """Polls what may have changed.

        Args:
            reader: Of the view.
            head: Of the shard, as it was read just now.
            pages: Those that are open.

        Returns:
            Pages of which something else is known than before.
        """
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
                # Another owner has come between two parts, and versions of two tokens cannot be compared.
                self.forget()
                return await self._poll(reader, pages)
            found |= polled.pages
            # The clock of the first part is the oldest one, and what is known of all pages is at least as new.
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
    """What is known of one view of a topic, on the pages that are open."""

    def __init__(self, app_id: str, view: LiveView, reader: ViewReader) -> None:
        self._app_id = app_id
        self.view = view
        self._reader = reader
        self.shards = [self._shard(0)]

    def _shard(self, partition: int) -> _Shard:
        return _Shard(view_keys(self._app_id, self.view.name, self.view.source, partition))

    def resize(self, heads: Sequence[ShardHead | None]) -> bool:
        """Takes over how many partitions there are, which the first shard says; whether there are others than before."""
        partitions = max(1, heads[0].partitions) if heads[0] is not None else len(self.shards)
        if partitions == len(self.shards):
            return False
        self.shards = [*self.shards, *map(self._shard, range(len(self.shards), partitions))][:partitions]
        return True

    async def update(self, heads: Sequence[ShardHead | None], pages: Collection[str], changed: set[tuple[str, str]]) -> None:
        """Polls what may have changed of all shards.

        Args:
            heads: Of the shards, as they were read just now.
            pages: Those that are open.
            changed: Takes (view, page) of which something else is known than before, also where the poll of another shard fails.

        Raises:
            Exception: The first one of any shard; of the others the poll counts.
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
        """Heads under which the pages are known."""
        return [shard.head for shard in self.shards]

    def state(self, page: str, now_ms: int) -> ViewState:
        """What a page shows."""
        if not all(page in shard.pages for shard in self.shards):
            return reading(self.view)
        return merged(self.view, self.heads, [shard.pages[page] for shard in self.shards], now_ms)

    def newest_ms(self, page: str) -> int:
        """Time of the newest item of a page; 0: it has none."""
        known = [shard.pages.get(page, EMPTY_PAGE).items for shard in self.shards]
        return max((items[0].time_ms for items in known if items), default=0)

    @property
    def as_of_ms(self) -> int:
        """What is known was true then; 0: nothing is known."""
        return min((head.clock_ms if head is not None else 0) for head in self.heads)

    def status(self, now_ms: int) -> tuple[str, int | None]:
        """How true the view is, and since when."""
        return state_of(self.heads, now_ms, self.view.expiry_ms)


def _reader(view: LiveView, redis: Redis, scripts: LiveScripts) -> ViewReader:
    # Of a count the newest item is read, too: its time says how long the way from the record to the browser was.
    is_list = view.kind == "list"
    return ViewReader(redis, scripts, view.show if is_list else 1, has_data=is_list)


class Poller:
    """Polls Redis for all views of topics, one poll at a time."""

    def __init__(self, app_id: str, views: Iterable[LiveView], redis: Redis, scripts: LiveScripts) -> None:
        self._redis = redis
        self._changed: set[tuple[str, str]] = set()
        self.views = {view.name: ViewSnapshot(app_id, view, _reader(view, redis, scripts)) for view in views}

    async def poll_once(self, wanted: Mapping[str, Collection[str]]) -> tuple[int, set[tuple[str, str]]]:
        """Reads all heads and what has moved.

        Args:
            wanted: View → pages that are open.

        Returns:
            The clock of Redis (ms), and (view, page) of which something else is known than when it last returned.

        Raises:
            RedisError: And its kind; what was polled all the same counts, and is returned next time.
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
        """Lets the next poll ask for everything."""
        for view in self.views.values():
            for shard in view.shards:
                shard.forget()
