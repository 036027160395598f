"""What is asked of Redis for live views, a method each: claim, apply and expire by the worker, poll and present by hubs.

Each is one script on the keys of one hash tag, see :mod:`streams_app.live.store.keys`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, NamedTuple, Protocol

from redis.asyncio import Redis

from streams_app.delivery.fingerprints import Fingerprint, of_text, to_text
from streams_app.delivery.scripts import Script, Timer, unmeasured, with_included
from streams_app.live.core.operations import Change
from streams_app.live.core.state import EMPTY_PAGE, Item, ShardHead, ShardPage
from streams_app.live.store.keys import PresenceKeys, ViewKeys

SCRIPTS: Final = ("claim", "apply", "expire", "poll", "present")

MAX_NAMED: Final = 1_000
"""Tabs of a page that are read to find the people behind them: one of them may have many."""

_HEAD: Final = ("token", "seq", "fence", "clock", "reading", "whole_ms", "partitions")


class ViewMetadata(NamedTuple):
    """What a state says of itself beside its fence and clock.

    Attributes:
        reading: End of the log up to which it is read before it is shown; None: it is shown.
        whole_ms: Before this moment something is missing that retention has removed; 0: nothing is.
        log: Fingerprints of what was applied.
    """

    reading: int | None = None
    whole_ms: int = 0
    log: tuple[Fingerprint, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveClaim:
    """A state as its new owner finds it.

    Attributes:
        fence: Highest offset that is applied.
        seq: Number of its last change.
        clock_ms: It holds what is true at this moment.
        marks: What else it says.
        is_new: Whether it was created now.
    """

    fence: int
    seq: int
    clock_ms: int
    marks: ViewMetadata
    is_new: bool


class ViewStart(NamedTuple):
    """A state that is to be created.

    Attributes:
        fence: Its first event comes after this offset.
        clock_ms: Its clock.
        marks: What else it says.
    """

    fence: int
    clock_ms: int
    marks: ViewMetadata


class ApplyReply(NamedTuple):
    """What *apply* did.

    Attributes:
        late: Puts that were due already.
        pages: Pages that hold anything now.
        is_repeated: Whether the part was applied before, and the reply was lost.
    """

    late: int
    pages: int
    is_repeated: bool


class ExpireReply(NamedTuple):
    """What *expire* did.

    Attributes:
        items: Items that left.
        is_more: Whether more may be due: the clock stays until none is.
        pages: Pages that hold anything now.
    """

    items: int
    is_more: bool
    pages: int


@dataclass(frozen=True, slots=True)
class PollReply:
    """What a hub did not know of some pages of one shard.

    Attributes:
        head: Marks of the shard, of the same moment.
        pages: Page → what it holds now, of those that differ from what was known.
    """

    head: ShardHead
    pages: Mapping[str, ShardPage]


class ClosedTab(NamedTuple):
    """A tab that has closed.

    Attributes:
        tab: The tab.
        written_ms: Until when it counts, as this hub wrote it last.
        until_ms: When it lapses, unless another hub has written something else since.
    """

    tab: str
    written_ms: float
    until_ms: float


class PageTabs(NamedTuple):
    """What a hub has to say of the tabs of one page.

    Attributes:
        open: Tab → until when it counts, for those to be written.
        closed: Those that have closed.
    """

    open: Mapping[str, float]
    closed: Sequence[ClosedTab] = ()


@dataclass(frozen=True, slots=True)
class PagePresence:
    """Who has a page open.

    Attributes:
        count: Number of tabs.
        tabs: Those that were written last, where they were asked for.
    """

    count: int
    tabs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PresenceReply:
    """Who has the pages of a view open.

    Attributes:
        marker: Another one than before means that Redis has lost what it was told: all tabs are to be written once more.
        pages: Page → its tabs.
    """

    marker: str
    pages: Mapping[str, PagePresence]


class LiveScripts(Protocol):
    """The scripts, wherever they run."""

    @property
    def by_name(self) -> Mapping[str, Callable[[Sequence[str], Mapping[str, Any]], Awaitable[Any]]]:
        """Name → what takes keys and arguments and returns the reply, or raises :class:`.FencedError`."""


class LiveRedisScripts:
    """The scripts in Redis, loaded once a process."""

    def __init__(self, redis: Redis, timer: Timer = unmeasured) -> None:
        """Loads nothing yet.

        Args:
            redis: Client of the application's Redis.
            timer: Measures each call.
        """
        self.by_name = {name: Script(f"live-{name}", redis.register_script(script_source(name)), timer) for name in SCRIPTS}


class ViewStore:
    """The state of one view and partition, in the hands of one claim.

    It counts ``seq``, a new one for each attempt to change anything: (token, seq) never names two states.
    """

    def __init__(self, scripts: LiveScripts, keys: ViewKeys, token: str, *, has_data: bool, expiry_ms: int, keep: int) -> None:
        """Asks nothing yet.

        Args:
            scripts: Those of the application's Redis.
            keys: Of the view and partition.
            token: Of the claim.
            has_data: Whether items have payloads.
            expiry_ms: An item is gone so long after its time.
            keep: Newest items of a page that are kept.
        """
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
        """Takes the state from whoever had it; one of another definition or topic is dropped, 500 pages a script.

        Args:
            definition: What the state means.
            topic_id: Id of the source; "" where the broker gives none.
            partitions: How many partitions the source has.
            drop: Drop whatever there is.
            begin: What to create where there is nothing; None: create nothing.

        Returns:
            None where there is nothing and nothing was to be created.
        """
        fence, clock_ms, marks = begin or ViewStart(0, 0, ViewMetadata())
        while True:
            reply = await self._call(
                "claim", token=self._token, definition=definition, topic_id=topic_id, partitions=partitions, drop=drop,
                begin="" if begin is None else str(fence), clock=str(clock_ms), reading=_text(marks.reading),
                whole_ms=str(marks.whole_ms),
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

    async def apply(self, fence: int, to: int, changes: Iterable[Change], marks: ViewMetadata) -> ApplyReply:
        """Applies what the offsets behind the fence do, up to and with ``to``; may be repeated after a lost reply.

        Args:
            fence: The fence it continues.
            to: Last offset of the part, which becomes the fence.
            changes: Of each page once; all together at most some thousand items.
            marks: What the state says of itself afterwards.

        Raises:
            FencedError: Another owner, or Redis has lost what it held; nothing was written.
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
            expiry_ms=self._expiry_ms, keep=self._keep, reading=_text(marks.reading), whole_ms=str(marks.whole_ms),
            log=to_text(marks.log),
        )  # fmt: skip
        return ApplyReply(int(reply[1]), int(reply[2]), reply[0] == b"already")

    async def expire(self, fence: int, now_ms: int, *, moves_clock: bool, limit: int = 500) -> ExpireReply:
        """Removes items that are due at a moment.

        Args:
            fence: The fence as its owner knows it.
            now_ms: The moment.
            moves_clock: Whether the clock becomes this moment once nothing is due any more.
            limit: Items at most.

        Raises:
            FencedError: As in :meth:`apply`.
        """
        self._seq += 1
        reply = await self._call(
            "expire", token=self._token, fence=str(fence), seq=str(self._seq), cutoff_ms=now_ms - self._expiry_ms,
            clock=str(now_ms) if moves_clock else "", limit=limit,
        )  # fmt: skip
        return ExpireReply(int(reply[1]), bool(reply[2]), int(reply[3]))


class ViewReader:
    """Reads the shards of one view, for hubs and commands; it changes nothing."""

    def __init__(self, redis: Redis, scripts: LiveScripts, show: int, *, has_data: bool = True) -> None:
        """Asks nothing yet.

        Args:
            redis: Client of the application's Redis.
            scripts: Its scripts.
            show: Newest items that are read of each page.
            has_data: Whether they may have payloads.
        """
        self._redis = redis
        self._scripts = scripts.by_name
        self._show = show
        self._has_data = has_data

    async def _call(self, script: str, keys: Sequence[str], **arguments: Any) -> Any:
        return await self._scripts[script](keys, arguments)

    async def poll(self, keys: ViewKeys, known: Mapping[str, str], token: str = "") -> PollReply | None:
        """What pages of a shard hold now, as far as it is not known.

        Args:
            keys: Of the shard.
            known: Page → the version that is known of it; "" where nothing is.
            token: Of the head under which those versions were read; "": nothing is known.

        Returns:
            None where the shard does not exist.
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
            pages = dict.fromkeys(known, EMPTY_PAGE)  # those that hold nothing are not returned
        for at in range(0, len(found), 5):
            place, version, count, items, payloads = found[at : at + 5]
            pages[wanted[int(place)]] = ShardPage(version.decode(), int(count), _items(items, payloads))
        return PollReply(head, pages)


async def heads_of(redis: Redis, shards: Sequence[ViewKeys]) -> tuple[int, list[ShardHead | None]]:
    """The marks of shards, of any views, in one round trip; None for one that does not exist.

    Returns:
        The clock of Redis (ms), asked for at the same time, and the marks in the order of the shards.
    """
    pipeline = redis.pipeline(transaction=False)
    for keys in shards:
        pipeline.hmget(keys.meta, list(_HEAD))
    (seconds, micros), *replies = await asyncio.gather(redis.time(), *([pipeline.execute()] if shards else []))
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    return now_ms, [None if None in marks[:4] else _head(marks) for marks in (replies[0] if replies else [])]


class PresenceStore:
    """Who has pages of one view open, as hubs say it."""

    def __init__(self, scripts: LiveScripts, keys: PresenceKeys, expiry_ms: int) -> None:
        """Asks nothing yet.

        Args:
            scripts: Those of the application's Redis.
            keys: Of the view.
            expiry_ms: A tab that no hub writes is gone after so long.
        """
        self._scripts = scripts.by_name
        self._keys = keys.in_order
        self._keep_ms = 2 * expiry_ms

    async def _call(self, script: str, **arguments: Any) -> Any:
        return await self._scripts[script](self._keys, arguments)

    async def present(self, pages: Mapping[str, PageTabs], now_ms: int, *, named: bool = False) -> PresenceReply:
        """Says which tabs have pages open, and counts those of all hubs.

        Args:
            pages: Page → what is to be written of it; also pages of which nothing is, which are counted all the same.
            now_ms: By the clock of Redis.
            named: Whether tabs are returned, too.
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
            page: PagePresence(int(reply[2 + 2 * place]), tuple(tab.decode() for tab in reply[3 + 2 * place]))
            for place, page in enumerate(pages)
        }
        return PresenceReply(reply[1].decode(), found)


def script_source(name: str) -> str:
    """A script as it is run."""
    return with_included(script_text(name), lambda shared: script_text(f"shared/{shared}"))


def script_text(name: str) -> str:
    """A script as it is written."""
    return (files("streams_app.live.store") / "lua" / f"{name}.lua").read_text("utf-8")


def _head(marks: Sequence[bytes | None]) -> ShardHead:
    token, seq, fence, clock, is_read, whole_ms, partitions = (mark or b"" for mark in marks)
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
