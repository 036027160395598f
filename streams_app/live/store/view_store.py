"""Calls the scripts of live views: workers call *claim*, *apply* and *expire*; hubs call *poll* and *present*.

The keys of a script have one hash tag, see :mod:`streams_app.live.store.keys`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from streams_app.delivery.fingerprints import Fingerprint, of_text, to_text
from streams_app.delivery.scripts import Scripts, ScriptSet
from streams_app.live.core.operations import Change
from streams_app.live.core.state import EMPTY_PAGE, Item, ShardHead, ShardPage
from streams_app.live.store.keys import PresenceKeys, ViewKeys

MAX_NAMED: Final = 1_000
"""Maximum number of tabs of a page that are read to find the users who have the page open; a user may have many tabs."""

_HEAD: Final = ("token", "seq", "fence", "clock", "reading", "whole_ms", "partitions")


class ViewMetadata(NamedTuple):
    """The metadata of a state besides its fence and clock.

    Attributes:
        reading: Offset up to which the log is read before browsers receive the state; None: they receive it already.
        whole_ms: See :class:`.ShardHead`.
        log: Fingerprints of applied records.
    """

    reading: int | None = None
    whole_ms: int = 0
    log: tuple[Fingerprint, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveClaim:
    """The state that a new owner has claimed.

    Attributes:
        seq: Number of the last change.
        clock_ms: The content is the state of the topic as of this time.
    """

    fence: int
    seq: int
    clock_ms: int
    metadata: ViewMetadata
    is_new: bool


class ViewStart(NamedTuple):
    """State that a claim creates if there is none; ``fence`` is the offset before the first event to read."""

    fence: int
    clock_ms: int
    metadata: ViewMetadata


class ApplyReply(NamedTuple):
    """Result of the script *apply*.

    Attributes:
        expired: Number of puts whose items had already expired.
        pages: Number of pages that have items now.
        is_repeated: Whether an earlier call, whose reply was lost, had already applied the batch.
    """

    expired: int
    pages: int
    is_repeated: bool


class ExpireReply(NamedTuple):
    """Result of the script *expire*: the number of removed items, and of the pages that have items now.

    Attributes:
        is_more: Whether more items may be due. The clock moves only when no item is due.
    """

    items: int
    is_more: bool
    pages: int


@dataclass(frozen=True, slots=True)
class PollReply:
    """Result of the script *poll*: the pages of one shard that have changed since a hub polled them, and its head at that time."""

    head: ShardHead
    pages: Mapping[str, ShardPage]


class ClosedTab(NamedTuple):
    """A browser tab that has closed.

    Attributes:
        written_ms: Expiry time of the tab as this hub last wrote it.
        until_ms: New expiry time of the tab. It is not written if another hub has written the tab since.
    """

    tab: str
    written_ms: float
    until_ms: float


class PageTabs(NamedTuple):
    """The tabs of one page that a hub writes; ``open`` has the expiry time of each open tab that is due to be written."""

    open: Mapping[str, float]
    closed: Sequence[ClosedTab] = ()


@dataclass(frozen=True, slots=True)
class PagePresence:
    """The number of tabs that have a page open; ``tabs`` are the most recently written ones, empty unless they were requested."""

    count: int
    tabs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PresenceReply:
    """Result of the script *present*: the tabs that have the pages of a view open.

    Attributes:
        marker: Text that changes if Redis loses its data. After a change, the hub must write all its tabs again.
    """

    marker: str
    pages: Mapping[str, PagePresence]


class LiveScripts(ScriptSet):
    """The scripts of live views."""

    package = "streams_app.live.store"
    prefix = "live-"


class ViewStore:
    """Writes the state of one partition of a view, with the token of one claim; of each page, the ``keep`` newest items remain.

    Each attempt to write gets the next ``seq``, so that (token, seq) never identifies two states.
    """

    def __init__(self, scripts: Scripts, keys: ViewKeys, token: str, *, has_data: bool, expiry_ms: int, keep: int) -> None:
        self._scripts = scripts.by_name
        self._keys = keys.in_order
        self._token = token
        self._has_data = has_data
        self._expiry_ms = expiry_ms
        self._keep = keep
        self._seq = 0

    async def _call(self, script: str, **arguments: Any) -> Any:
        return await self._scripts[script](self._keys, arguments)

    async def claim(
        self, definition: str, topic_id: str, partitions: int, *, drop: bool = False, begin: ViewStart | None = None
    ) -> LiveClaim | None:
        """Take over the state from its previous owner. A state of another definition or topic is dropped, in several script calls.

        Args:
            definition: Definition of the view, see :func:`.definition_of`.
            topic_id: Id of the source; "" if the broker has none.
            partitions: Number of partitions of the source.
            drop: Whether to drop the stored state in any case.
            begin: State to create if there is none, or if it was dropped; None: create no state.
        """
        fence, clock_ms, metadata = begin or ViewStart(0, 0, ViewMetadata())
        while True:
            reply = await self._call(
                "claim", token=self._token, definition=definition, topic_id=topic_id, partitions=partitions, drop=drop,
                begin="" if begin is None else str(fence), clock=str(clock_ms), reading=_text(metadata.reading),
                whole_ms=str(metadata.whole_ms),
            )  # fmt: skip
            if reply[0] != b"more":
                break
        if reply[0] == b"none":
            return None
        fence, self._seq, clock_ms = int(reply[1]), int(reply[2]), int(reply[3])
        return LiveClaim(
            fence,
            self._seq,
            clock_ms,
            ViewMetadata(_number(reply[4]), int(reply[5]), of_text(reply[6].decode())),
            reply[0] == b"new",
        )

    async def apply(self, fence: int, to: int, changes: Iterable[Change], metadata: ViewMetadata) -> ApplyReply:
        """Apply the records after the fence, up to and including ``to``; may be repeated after a lost reply.

        Args:
            fence: The fence that is expected in Redis; the batch begins after it.
            to: Last offset of the batch, which becomes the fence.
            changes: One change for each page, with some thousand items in total at most.
            metadata: Metadata of the state after the batch.

        Raises:
            FencedError: Another worker has claimed the state, or Redis has lost data; nothing was written.
        """
        self._seq += 1
        given = [
            [
                page, list(removed), [part for item in puts for part in (item.time_ms, item.item)],
                [item.payload for item in puts] if self._has_data else [],
            ]
            for page, removed, puts in changes
        ]  # fmt: skip
        reply = await self._call(
            "apply", token=self._token, fence=str(fence), to=str(to), seq=str(self._seq), changes=given, has_data=self._has_data,
            expiry_ms=self._expiry_ms, keep=self._keep, reading=_text(metadata.reading), whole_ms=str(metadata.whole_ms),
            log=to_text(metadata.log),
        )  # fmt: skip
        return ApplyReply(int(reply[1]), int(reply[2]), reply[0] == b"already")

    async def expire(self, fence: int, now_ms: int, *, moves_clock: bool, limit: int = 500) -> ExpireReply:
        """Remove up to ``limit`` items that have expired by ``now_ms``; the errors are those of :meth:`apply`.

        Args:
            fence: The fence that is expected in Redis.
            moves_clock: Whether to set the clock to ``now_ms`` when no more items are due.
        """
        self._seq += 1
        reply = await self._call(
            "expire", token=self._token, fence=str(fence), seq=str(self._seq), cutoff_ms=now_ms - self._expiry_ms,
            clock=str(now_ms) if moves_clock else "", limit=limit,
        )  # fmt: skip
        return ExpireReply(int(reply[1]), bool(reply[2]), int(reply[3]))

    async def forget(self, pages: Sequence[str], items: Sequence[tuple[str, str]]) -> tuple[int, int]:
        """Remove pages, and items of other pages; the token becomes the owner if something is removed.

        Returns:
            The numbers of removed pages and items.
        """
        reply = await self._call("forget", token=self._token, pages=list(pages), items=[name for pair in items for name in pair])
        return reply[1], reply[2]


class ViewReader:
    """Reads the ``show`` newest items of each page of one view, for hubs and commands, without changing them."""

    def __init__(self, redis: Redis, scripts: Scripts, show: int, *, has_data: bool = True) -> None:
        self._redis = redis
        self._scripts = scripts.by_name
        self._show = show
        self._has_data = has_data

    async def _call(self, script: str, keys: Sequence[str], **arguments: Any) -> Any:
        return await self._scripts[script](keys, arguments)

    async def poll(self, keys: ViewKeys, known: Mapping[str, str], token: str = "") -> PollReply | None:
        """Return the pages of a shard whose version differs from the one that the hub has; None if the shard does not exist.

        Args:
            keys: Keys of the shard.
            known: The version of each requested page that the hub has; "" if the hub has none.
            token: Token of the shard when those versions were read; "" if none were read. If the shard has another one, all
                requested pages are returned.
        """
        reply = await self._call(
            "poll", keys.in_order, known=token, wanted=list(known), versions={page: one for page, one in known.items() if one},
            show=self._show, has_data=self._has_data,
        )  # fmt: skip
        if reply[0] == b"none":
            return None
        head, found, wanted = _head(reply[1:8]), reply[8:], list(known)
        pages: dict[str, ShardPage] = {}
        if head.token != token:
            pages = dict.fromkeys(known, EMPTY_PAGE)  # empty pages are not returned
        for at in range(0, len(found), 6):
            index, version, count, items, payloads, has_dropped = found[at : at + 6]
            pages[wanted[int(index)]] = ShardPage(version.decode(), int(count), _items(items, payloads), bool(has_dropped))
        return PollReply(head, pages)


async def heads_of(redis: Redis, shards: Sequence[ViewKeys]) -> tuple[int, list[ShardHead | None]]:
    """Read the heads of shards, which may belong to several views, in one round trip, and the clock of Redis at the same time.

    They are in the order of the shards; None for a shard that does not exist.
    """
    pipeline = redis.pipeline(transaction=False)
    for keys in shards:
        pipeline.hmget(keys.meta, list(_HEAD))
    (seconds, micros), *replies = await asyncio.gather(redis.time(), *([pipeline.execute()] if shards else []))
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    return now_ms, [None if None in fields[:4] else _head(fields) for fields in (replies[0] if replies else [])]


class PresenceStore:
    """Writes and counts the tabs that have pages of one presence view open. All hubs write to the same keys.

    The keys expire after twice ``expiry_ms`` if no hub writes them.
    """

    def __init__(self, scripts: Scripts, keys: PresenceKeys, expiry_ms: int) -> None:
        self._scripts = scripts.by_name
        self._keys = keys.in_order
        self._keep_ms = 2 * expiry_ms

    async def _call(self, script: str, **arguments: Any) -> Any:
        return await self._scripts[script](self._keys, arguments)

    async def present(self, pages: Mapping[str, PageTabs], now_ms: int, *, named: bool = False) -> PresenceReply:
        """Write the tabs that have pages open, and count the tabs of all hubs; pages without tabs to write are counted, too.

        ``now_ms`` is the clock of Redis. If ``named`` is set, the ids of the tabs are returned as well.
        """
        given = [
            [
                page, [part for tab, until_ms in tabs.open.items() for part in (until_ms, tab)],
                [part for tab, written_ms, until_ms in tabs.closed for part in (written_ms, until_ms, tab)],
            ]
            for page, tabs in pages.items()
        ]  # fmt: skip
        reply = await self._call(
            "present",
            marker=secrets.token_hex(8),
            now_ms=now_ms,
            keep_ms=self._keep_ms,
            named=MAX_NAMED if named else 0,
            pages=given,
        )
        found = {
            page: PagePresence(int(reply[2 + 2 * index]), tuple(tab.decode() for tab in reply[3 + 2 * index]))
            for index, page in enumerate(pages)
        }
        return PresenceReply(reply[1].decode(), found)


def _head(fields: Sequence[bytes | None]) -> ShardHead:
    token, seq, fence, clock, is_read, whole_ms, partitions = (value or b"" for value in fields)
    return ShardHead(
        token.decode(), seq.decode(), int(fence), int(clock), is_read != b"", int(whole_ms or b"0"), int(partitions or b"0")
    )  # fmt: skip


def _items(items: Sequence[bytes], payloads: Sequence[bytes | None]) -> tuple[Item, ...]:
    return tuple(
        Item(item.decode(), int(float(time_ms)), payload or b"")
        for item, time_ms, payload in zip(items[0::2], items[1::2], payloads or [None] * (len(items) // 2), strict=True)
    )


def _text(number: int | None) -> str:
    return "" if number is None else str(number)


def _number(text: bytes) -> int | None:
    return int(text) if text else None
