"""State of a subscriber's partition in Redis, with one method per script. No other code accesses the keys.

Kafka decides who owns a partition and what is finished. Redis stores how many attempts an event has had, and the ids of events that
have run. A rejected script raises :class:`.FencedError`: another process is the owner, or Redis has lost data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.scripts import Scripts, ScriptSet
from streams_app.subscribers.state.keys import HOUR_MS, SubscriberKeys
from streams_app.subscribers.state.token_bucket import LeaseGrant, TokenBucket

GONE_MS: Final = 3_000
"""A worker that has not requested leases for this long no longer counts among the workers that share the rate."""


class AttemptEntry(NamedTuple):
    """Stored state of an event that has begun or waits for its next attempt.

    Attributes:
        attempts: Number of attempts that have begun, including the current one.
        due_ms: Wall-clock time at which the next attempt is due; 0 while an attempt is running. :data:`.DUE_AT_ONCE` and
            :data:`.WATCH_PASSED` are no times: the latter marks a suspect of crash isolation that is still running after its
            watch, so that a crash is no longer attributed to its event.
    """

    attempts: int
    crash_count: int = 0
    due_ms: int = 0

    @property
    def is_begun(self) -> bool:
        """Whether an attempt was running when the entry was written; False for a suspect whose watch had ended."""
        return self.due_ms == 0


class Begin(msgspec.Struct, frozen=True, gc=False):
    """An event whose attempt is about to begin.

    A msgspec struct is created in a quarter of the time of a named tuple.

    Attributes:
        entry: Counts the attempt that begins.
        event_id: Identity of the event for deduplication; "" if ids are not stored, or if the event has no id except its position.
    """

    offset: int
    entry: AttemptEntry
    event_id: str = ""


@dataclass(frozen=True, slots=True)
class StoredState:
    """The state that a claim finds in Redis.

    Attributes:
        fence: The low watermark as last written.
        number: Number of begun events, plus the number of requests that added ids. If it is not as expected, Redis has lost data.
        open: Stored state of each event that has begun or waits for its next attempt, by offset.
        metadata: Finished offsets above the fence, encoded by :mod:`.offset_metadata`; "" if it was never written.
    """

    fence: int
    number: int
    open: dict[int, AttemptEntry]
    metadata: str = ""


class SubscriberScripts(ScriptSet):
    """The scripts of subscribers."""

    package = "streams_app.subscribers.state"
    prefix = "subscriber-"


class SubscriberStore:
    """The state of one subscriber and partition, accessed by one claim; ``now_ms`` is the wall clock."""

    def __init__(self, scripts: Scripts, keys: SubscriberKeys, token: str, *, remember_ms: int = 0) -> None:
        """Bind the scripts to the keys and the token of a claim. If ``remember_ms`` is 0, no event ids are stored."""
        self.keys = keys
        self._scripts = scripts.by_name
        self._token = token
        self._remember_ms = remember_ms
        self._number = self._end_requests = 0
        self._asked = 0
        self._asking = 0
        self._sampled = 0

    async def _call(self, script: str, ids: Sequence[str] = (), **arguments: Any) -> Any:
        self._asked += 1
        self._asking = self._asked
        try:
            return await self._scripts[script]([*self.keys.state, *ids], arguments)
        finally:
            self._asking = 0

    def sample_stalled(self) -> bool:
        """Return whether the request that waited for an answer at the previous call is still waiting."""
        before, self._sampled = self._sampled, self._asking
        return bool(self._asking) and self._asking == before

    async def progress(self) -> OffsetAndMetadata | None:
        """Read the low watermark and its metadata as last written, without a claim; None if the partition has no state."""
        reply = await self._call("progress")
        return None if reply[0] == b"none" else OffsetAndMetadata(int(reply[1]), reply[2].decode())

    async def claim(self, low: int | None, *, is_repeated: bool = False) -> StoredState | None:
        """Take over the state from any former owner.

        Args:
            low: Low watermark of a new state; None: do not create one.
            is_repeated: Whether this claim was stored before, but Redis may have lost it.

        Returns:
            None if there is no state and none was created.

        Raises:
            FencedError: ``is_repeated`` is true, and another owner has claimed the state in the meantime.
        """
        reply = await self._call("claim", token=self._token, begin="" if low is None else str(low), retried=is_repeated)
        if reply[0] == b"none":
            return None
        fence, self._number = int(reply[1]), int(reply[2])
        open_ = {int(at): _entry(text) for at, text in zip(reply[4::2], reply[5::2], strict=True)}
        return StoredState(fence, self._number, open_, reply[3].decode())

    async def learn(self, ids: Sequence[tuple[int, str]], now_ms: int) -> None:
        """Store the identities of events that were finished before this claim, so that duplicates of them are recognised.

        Raises:
            FencedError: As for :meth:`begin`.
        """
        reply = await self._call(
            "learn", self.keys.ids(now_ms, self._remember_ms), token=self._token, number=str(self._number),
            events=[text for offset, event_id in ids for text in (str(offset), event_id)],
            expire_ms=self._remember_ms + 2 * HOUR_MS,
        )  # fmt: skip
        self._number = int(reply[1])

    async def begin(self, events: Sequence[Begin], now_ms: int) -> list[int | None]:
        """Record that attempts of events begin, before they begin.

        Args:
            events: At most a few thousand.

        Returns:
            One item for each event: None if it may be attempted; for a duplicate, the offset of the first event with the same id.

        Raises:
            FencedError: Another owner has claimed the partition, or Redis has lost data; nothing was written.
        """
        reply = await self._call(
            "begin", self.keys.ids(now_ms, self._remember_ms), token=self._token, number=str(self._number),
            events=[text for event in events for text in (str(event.offset), _packed(event.entry), event.event_id)],
            expire_ms=self._remember_ms + 2 * HOUR_MS,
        )  # fmt: skip
        self._number = int(reply[1])
        firsts: list[int | None] = [None] * len(events)
        for index, first in zip(reply[2::2], reply[3::2], strict=True):
            firsts[int(index)] = int(first)
        return firsts

    async def end(self, finished: Sequence[int], waiting: Sequence[tuple[int, AttemptEntry]], low: int, metadata: str = "") -> None:
        """Store the outcomes of events, and the low watermark with the encoded finished offsets above it.

        Args:
            finished: Offsets of finished events, whose entries are removed.
            waiting: Offset and new entry of each event that waits for its next attempt.

        Raises:
            FencedError: As for :meth:`begin`.
        """
        self._end_requests += 1
        await self._call(
            "end", token=self._token, number=str(self._number), told=self._end_requests,
            finished=[str(offset) for offset in finished],
            waiting=[text for offset, entry in waiting for text in (str(offset), _packed(entry))],
            low=str(low), note=metadata,
        )  # fmt: skip


class RateStore:
    """Access of one worker to the token bucket in Redis that all workers of a subscriber share."""

    def __init__(self, scripts: Scripts, key: str, token: str, bucket: TokenBucket) -> None:
        """Bind the script to a token bucket; the random ``token`` identifies the worker."""
        self._scripts = scripts.by_name
        self._key = key
        self._token = token
        self._bucket = bucket

    async def _call(self, script: str, **arguments: Any) -> Any:
        return await self._scripts[script]([self._key], arguments)

    async def lease(self, wanted: int) -> tuple[LeaseGrant, int]:
        """Request leases, one for each attempt that may start; return them, and the number of workers that share the rate.

        A request for 0 leases only registers this worker among those that share the rate. After an error, leases may have been
        granted, but nobody uses them.
        """
        every_us, full_us = self._bucket
        reply = await self._call("lease", token=self._token, wanted=wanted, every_us=every_us, full_us=full_us, gone_ms=GONE_MS)
        return LeaseGrant(int(reply[1]), int(reply[2]), 0), int(reply[3])


@lru_cache
def _packed(entry: AttemptEntry) -> str:
    # Nearly all entries are those of first attempts, so the cache almost always has them.
    return " ".join(map(str, entry))


def _entry(text: bytes) -> AttemptEntry:
    return AttemptEntry(*map(int, text.split()))
