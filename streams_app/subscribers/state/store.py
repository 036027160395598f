"""What Redis keeps of a subscriber's partition: one method a script, nothing else touches the keys.

Kafka decides who owns a partition and what is finished. Redis knows how often an event was tried, and which ids were seen. A reply
that says ``refused`` raises :class:`.FencedError`: another process is the owner, or Redis has lost what it was told.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from redis.asyncio import Redis

from streams_app.delivery.processor import OffsetAndMetadata
from streams_app.delivery.scripts import Script, Timer, unmeasured, with_included
from streams_app.subscribers.state.keys import HOUR_MS, SubscriberKeys
from streams_app.subscribers.state.token_bucket import Leased, TokenBucket

SCRIPTS: Final = ("progress", "claim", "learn", "begin", "end", "lease")


GONE_MS: Final = 3_000
"""A worker that has not asked for leases for so long does not share in the rate any more."""


class AttemptEntry(NamedTuple):
    """What is known of an event that was begun, or waits.

    Attributes:
        attempts: How many attempts have begun, the one under way with them.
        deaths: How many of them ended with their process, as far as anybody knows.
        due_ms: When the next attempt is due, by the wall clock; 0 while one is under way.
    """

    attempts: int
    deaths: int = 0
    due_ms: int = 0

    @property
    def is_begun(self) -> bool:
        """Whether an attempt was under way when this was written."""
        return self.due_ms == 0


class Begin(msgspec.Struct, frozen=True, gc=False):
    """An event that is about to begin: a struct of msgspec, which is made in a quarter of the time of a named tuple.

    Attributes:
        offset: Of its record.
        entry: With the attempt that begins.
        event_id: Its identity, by which it is known again; "" where none is kept, or where its place is its id.
    """

    offset: int
    entry: AttemptEntry
    event_id: str = ""


@dataclass(frozen=True, slots=True)
class StoredState:
    """What Redis had when a partition was claimed.

    Attributes:
        fence: Low watermark as it was told last.
        number: How many events were ever begun, and how often ids were learned.
        open: Offset → what is known of it.
        note: What was finished above the fence, see :mod:`streams_app.subscribers.state.offset_metadata`; "" where nobody said.
    """

    fence: int
    number: int
    open: dict[int, AttemptEntry]
    note: str = ""


class Scripts(Protocol):
    """The scripts, wherever they run."""

    @property
    def by_name(self) -> Mapping[str, Callable[[Sequence[str], Mapping[str, Any]], Awaitable[Any]]]:
        """Name → what takes keys and arguments and returns the reply, or raises :class:`.FencedError`."""


class ScriptSet:
    """The scripts in Redis, loaded once a process."""

    def __init__(self, redis: Redis, timer: Timer = unmeasured) -> None:
        """Loads nothing yet.

        Args:
            redis: Client of the application's Redis.
            timer: Measures each call.
        """
        self.by_name = {name: Script(f"subscriber-{name}", redis.register_script(script_source(name)), timer) for name in SCRIPTS}


class SubscriberStore:
    """What is kept of one subscriber and partition, in the hands of one claim.

    Attributes:
        keys: Of the subscriber and partition.
    """

    def __init__(self, scripts: Scripts, keys: SubscriberKeys, token: str, *, remember_ms: int = 0) -> None:
        """Asks nothing yet.

        Args:
            scripts: Those of the application's Redis.
            keys: Of the subscriber and partition.
            token: Of the claim.
            remember_ms: How long ids are known; 0: none is kept.
        """
        self.keys = keys
        self._scripts = scripts.by_name
        self._token = token
        self._remember_ms = remember_ms
        self._number = self._told = 0
        self._asked = 0
        self._asking = 0
        self._seen_asking = 0

    async def _call(self, script: str, ids: Sequence[str] = (), **arguments: Any) -> Any:
        self._asked += 1
        self._asking = self._asked
        try:
            return await self._scripts[script]([*self.keys.marks, *ids], arguments)
        finally:
            self._asking = 0

    def is_waiting(self) -> bool:
        """Whether Redis has left the same request unanswered since this was asked last."""
        before, self._seen_asking = self._seen_asking, self._asking
        return bool(self._asking) and self._asking == before

    async def progress(self) -> OffsetAndMetadata | None:
        """How far the partition is, whoever owns it: the low watermark as it was told last, with what is finished above it.

        Returns:
            None where there is no state.
        """
        reply = await self._call("progress")
        return None if reply[0] == b"none" else OffsetAndMetadata(int(reply[1]), reply[2].decode())

    async def claim(self, low: int | None, *, again: bool = False) -> StoredState | None:
        """Takes what is kept from whoever had it.

        Args:
            low: The low watermark with which the state begins where there is none; None: create nothing.
            again: Whether this claim has been here before, and Redis may have lost it: then nothing is taken from anybody.

        Returns:
            None where there is nothing and nothing was to be created.

        Raises:
            FencedError: Another owner has come since.
        """
        reply = await self._call("claim", token=self._token, begin="" if low is None else str(low), again=again)
        if reply[0] == b"none":
            return None
        fence, self._number = int(reply[1]), int(reply[2])
        open_ = {int(at): _entry(text) for at, text in zip(reply[4::2], reply[5::2], strict=True)}
        return StoredState(fence, self._number, open_, reply[3].decode())

    async def learn(self, ids: Sequence[tuple[int, str]], now_ms: int) -> None:
        """Notes the identities of events that were finished before this claim.

        Args:
            ids: Offset and identity of each.
            now_ms: Wall clock.

        Raises:
            FencedError: As in :meth:`begin`.
        """
        reply = await self._call(
            "learn", self.keys.ids(now_ms, self._remember_ms), token=self._token, number=str(self._number),
            events=[text for offset, event_id in ids for text in (str(offset), event_id)],
            expire_ms=self._remember_ms + 2 * HOUR_MS,
        )  # fmt: skip
        self._number = int(reply[1])

    async def begin(self, events: Sequence[Begin], now_ms: int) -> list[int | None]:
        """Notes events as begun before they begin.

        Args:
            events: At most a few thousand.
            now_ms: Wall clock.

        Returns:
            For each event None where it may begin; else it is a duplicate, and this is the offset at which its id was first seen.

        Raises:
            FencedError: Another owner, or Redis has lost what it was told; nothing was written.
        """
        reply = await self._call(
            "begin", self.keys.ids(now_ms, self._remember_ms), token=self._token, number=str(self._number),
            events=[text for event in events for text in (str(event.offset), _packed(event.entry), event.event_id)],
            expire_ms=self._remember_ms + 2 * HOUR_MS,
        )  # fmt: skip
        self._number = int(reply[1])
        firsts: list[int | None] = [None] * len(events)
        for place, first in zip(reply[2::2], reply[3::2], strict=True):
            firsts[int(place)] = int(first)
        return firsts

    async def end(self, finished: Sequence[int], waiting: Sequence[tuple[int, AttemptEntry]], low: int, note: str = "") -> None:
        """Notes what has become of events.

        Args:
            finished: Offsets of those that are finished.
            waiting: Those that were put off, each with what is known of it.
            low: The low watermark.
            note: What is finished above it.

        Raises:
            FencedError: As in :meth:`begin`.
        """
        self._told += 1
        await self._call(
            "end", token=self._token, number=str(self._number), told=self._told, finished=[str(offset) for offset in finished],
            waiting=[text for offset, entry in waiting for text in (str(offset), _packed(entry))],
            low=str(low), note=note,
        )  # fmt: skip


class RateStore:
    """What all workers of a subscriber lease from, in the hands of one."""

    def __init__(self, scripts: Scripts, key: str, token: str, pace: TokenBucket) -> None:
        """Asks nothing yet.

        Args:
            scripts: Those of the application's Redis.
            key: Of the subscriber.
            token: Of the worker.
            pace: Of the rate of the whole application.
        """
        self._scripts = scripts.by_name
        self._key = key
        self._token = token
        self._pace = pace

    async def _call(self, script: str, **arguments: Any) -> Any:
        return await self._scripts[script]([self._key], arguments)

    async def lease(self, wanted: int) -> tuple[Leased, int]:
        """Leases attempts that may begin, and says that this worker is there.

        Args:
            wanted: So many at most.

        Returns:
            With how many workers ask.

        Raises:
            RedisError, OSError, TimeoutError: What was leased is lost.
        """
        every_us, full_us = self._pace
        reply = await self._call("lease", token=self._token, wanted=wanted, every_us=every_us, full_us=full_us, gone_ms=GONE_MS)
        return Leased(int(reply[1]), int(reply[2]), 0), int(reply[3])


def script_source(name: str) -> str:
    """Lua of a script as it is run: with what it shares with others."""
    return with_included(text_of(name), lambda shared: text_of(f"shared/{shared}"))


def text_of(name: str) -> str:
    """Lua of a script as it is written."""
    return (files("streams_app.subscribers.state") / "lua" / f"{name}.lua").read_text("utf-8")


@lru_cache
def _packed(entry: AttemptEntry) -> str:
    # Nearly all are those of first attempts.
    return " ".join(map(str, entry))


def _entry(text: bytes) -> AttemptEntry:
    return AttemptEntry(*map(int, text.split()))
