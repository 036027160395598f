"""The state of a shard in Redis: one method a script, nothing else touches the keys.

Every script is atomic on one shard. A reply that says ``refused`` raises :class:`.RefusedError`: this process is not the
owner any more, or Redis is not in the state it was left in; the shard is claimed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgpack

from streams_app.folding.core.record import Sealed
from streams_app.folding.store.arguments import Arguments, Bounds, packed_closed, packed_plain
from streams_app.folding.store.keys import ShardKeys
from streams_app.folding.store.portions import NOTHING, Ahead, Portion, Portioned
from streams_app.folding.store.replies import (
    Claimed,
    DetailNeededError,
    Folded,
    OutboxFullError,
    RefusedError,
    SealedGroups,
    StagingNeededError,
)
from streams_app.folding.store.scripts import ScriptSet

FINISHED_RANGES = 500
"""That one script removes: some 3 ms."""


class ShardStore:
    """One shard's scripts, bound to its keys."""

    def __init__(self, scripts: ScriptSet, keys: ShardKeys) -> None:
        self.redis = scripts.redis
        self._scripts = scripts.by_name
        self.keys = keys

    async def claim(
        self, token: str, fence: int | None, epoch: bytes, definition: str, owner: str = "", topics: str = "", topic_id: str = ""
    ) -> Claimed | None:
        """Makes ``token`` the owner.

        Args:
            token: Fresh and random.
            fence: What the state begins with where there is none; None: create nothing.
            epoch: Four random bytes for a state that is created.
            definition: For a state that is created.
            owner: The claimant, for people.
            topics: Of records and dead letters, see :mod:`streams_app.folding.agents.drained`.
            topic_id: Of the source; "": not known.

        Returns:
            The state, or None where there is none and ``fence`` is None.
        """
        keys = self.keys
        reply = await self._scripts["claim"](
            keys=[keys.meta, keys.due, keys.first, keys.outbox, keys.group_prefix],
            args=[token, "" if fence is None else fence, epoch, definition, owner, topics, topic_id],
        )
        if reply[0] == b"none":
            return None
        return Claimed(
            created=reply[0] == b"new", fence=int(reply[1]), clock_ms=int(reply[2]), record_clock_ms=int(reply[3]),
            definition=reply[4].decode(), open_groups=reply[5], outbox_records=reply[6], epoch=reply[7], late_ms=int(reply[8]),
        )  # fmt: skip

    async def fold(  # the arguments of the script
        self,
        token: str,
        fence: int,
        to: int,
        clock_ms: int,
        record_clock_ms: int,
        bounds: Bounds,
        *,
        gaps_close: bool,
        partitions: int,
        arguments: Arguments,
        ahead: Ahead = NOTHING,
        attempt: str = "",
        arrived_ms: int | None = None,
        late_ms: int = 0,
    ) -> Folded:
        """Folds the range ``fence + 1 … to``; the rest is as in ``fold.lua``.

        Args:
            token: Of the owner.
            fence: Expected.
            to: The fence afterwards.
            clock_ms: Partition clock after the range.
            record_clock_ms: Newest record timestamp so far.
            bounds: Of the fold.
            gaps_close: ``sessions``: a gap closes a group.
            partitions: Partition count of the source.
            arguments: Of the range, without what has been staged.
            ahead: How much has been.
            attempt: By which attempt, see :meth:`stage`; "" where nothing has been.
            arrived_ms: When the range arrived; None: it had been waiting.
            late_ms: By how much record time is behind the time of arrival.

        Raises:
            RefusedError: Not the owner, or another fence.
            DetailNeededError: To be sent again with single events for some groups.
            StagingNeededError: To be staged, and sent again.
            OutboxFullError: To be sent again after the outbox has been sent.
        """
        keys = self.keys
        reply = await self._scripts["fold"](
            keys=[keys.meta, keys.due, keys.first, keys.outbox, keys.group_prefix],
            args=[
                token, fence, to, clock_ms, record_clock_ms, bounds.quiet_ms if gaps_close else "", bounds.hold_ms,
                bounds.max_events, bounds.max_changed, bounds.outbox_limit, partitions,
                arguments.groups, packed_closed(arguments.closed), "" if arrived_ms is None else arrived_ms, ahead.staged,
                packed_plain(arguments.plain), attempt, ahead.opened, ahead.ended_ahead, late_ms,
            ],
        )  # fmt: skip
        status = reply[0]
        if status == b"ok":
            elsewhere = {position - 1 for position in msgpack.unpackb(reply[3])}
            sealed = [session.sealed for position, session in enumerate(arguments.closed) if position not in elsewhere]
            sealed += Sealed.unpack_all(reply[2])
            return Folded(
                repeated=False,
                clock_ms=int(reply[1]),
                sealed=sorted(sealed, key=attrgetter("first_offset")) if reply[2] else sealed,
                held=reply[4],
            )
        if status == b"already":
            return Folded(repeated=True, clock_ms=int(reply[1]), sealed=[])
        if status == b"detail":
            raise DetailNeededError(frozenset(reply[1]))
        if status == b"long":
            raise StagingNeededError
        if status == b"full":
            raise OutboxFullError
        raise RefusedError("fold", reply[1].decode())

    async def stage(
        self, token: str, fence: int, to: int, part: Portion, bounds: Bounds, *, attempt: str, number: int, gaps_close: bool,
        partitions: int, arrived_ms: int | None = None,
    ) -> Portioned | None:  # fmt: skip
        """Puts a part of the range ``fence + 1 … to`` beyond the fence; what is new is not seen before the fence moves.

        Args:
            token: Of the owner.
            fence: Expected.
            to: End of the range ``part`` is of.
            part: Of it.
            bounds: Of the fold.
            attempt: The same for all portions. :meth:`fold` wants it with a colon and the number of the last portion.
            number: Of the portion. Before the first one, 1, what another attempt has staged is dropped.
            gaps_close: As for :meth:`fold`.
            partitions: Likewise.
            arrived_ms: Likewise.

        Returns:
            What it did; what it left is for :meth:`fold`. None: the range has been folded, and the reply was lost.

        Raises:
            RefusedError: Not the owner, another fence, another attempt, or a portion is missing.
        """
        keys = self.keys
        reply = await self._scripts["stage"](
            keys=[keys.meta, keys.due, keys.first, keys.outbox, keys.group_prefix],
            args=[
                token, fence, to, attempt, number, packed_closed(part.sessions), packed_plain(part.plain),
                "" if arrived_ms is None else arrived_ms, bounds.quiet_ms if gaps_close else "", bounds.hold_ms,
                bounds.max_events, bounds.max_changed, partitions,
            ],
        )  # fmt: skip
        if reply[0] == b"already":
            return None
        if reply[0] != b"ok":
            raise RefusedError("stage", reply[1].decode())
        held, joint = (set(msgpack.unpackb(reply[at])) for at in (1, 6))
        sessions = [part.sessions[position - 1] for position in sorted(held)]
        plain = [part.plain[position - 1] for position in msgpack.unpackb(reply[2])]
        done, rest = reply[8], Portion(part.sessions[reply[8] :], part.plain[reply[9] :])
        elsewhere = held | joint
        staged = [found.sealed for at, found in enumerate(part.sessions[:done], 1) if at not in elsewhere]
        sealed, ended = Sealed.unpack_all(reply[4]), Sealed.unpack_all(reply[7])
        return Portioned(Portion(sessions, plain), reply[3], sealed, staged, ended, rest, reply[10], reply[5] == 1)

    async def seal(
        self, token: str, fence: int, clock_ms: int, bounds: Bounds, *, quiet: bool, everything: bool, limit: int, partitions: int
    ) -> SealedGroups:
        """Puts due groups into the outbox.

        Args:
            token: Of the owner.
            fence: Expected.
            clock_ms: Partition clock; kept if it is ahead of the stored one.
            bounds: Of the fold.
            quiet: Whether silence closes groups now.
            everything: Seal every open group, as ``flush``.
            limit: Groups at most.
            partitions: Partition count of the source.

        Raises:
            RefusedError: Not the owner, or another fence.
        """
        keys = self.keys
        reply = await self._scripts["seal"](
            keys=[keys.meta, keys.due, keys.first, keys.outbox, keys.group_prefix, keys.flush],
            args=[
                token, fence, clock_ms, bounds.quiet_ms if quiet else "", bounds.hold_ms, "1" if everything else "0",
                limit, partitions,
            ],
        )  # fmt: skip
        if reply[0] != b"ok":
            raise RefusedError("seal", reply[1].decode())
        return SealedGroups(
            clock_ms=int(reply[1]),
            more=reply[2] == b"1",
            open_groups=reply[3],
            outbox_records=reply[4],
            oldest_score_ms=_number(reply[5]),
            oldest_opened_ms=_number(reply[6]),
            sealed=Sealed.unpack_all(reply[7]),
        )

    async def finish(self, token: str, ranges: Sequence[tuple[int, int, int]]) -> int:
        """Removes acknowledged records from the outbox; returns how many are left.

        Args:
            token: Of the owner.
            ranges: Lowest first offset, highest one, and how many records there are between them; all of them acknowledged.

        Raises:
            RefusedError: Not the owner.
        """
        keys = self.keys
        left = 0
        for begin in range(0, max(1, len(ranges)), FINISHED_RANGES):
            packed = msgpack.packb([number for found in ranges[begin : begin + FINISHED_RANGES] for number in found])
            reply = await self._scripts["finish"](keys=[keys.meta, keys.outbox], args=[token, packed])
            if reply[0] != b"ok":
                raise RefusedError("finish", reply[1].decode())
            left = int(reply[2])
        return left

    async def watermark(self) -> int | None:
        """The low watermark; None where there is no state. Needs no token: it is true for ever, whoever asks."""
        keys = self.keys
        reply = await self._scripts["watermark"](keys=[keys.meta, keys.first, keys.outbox])
        return None if reply is None else int(reply)

    async def topic_id(self) -> str:
        """The id of the log that has been folded; "" where that is not known."""
        found: Any = await self.redis.hget(self.keys.meta, "topic_id")
        return found.decode() if found else ""

    async def left_behind(self) -> tuple[str, str] | None:
        """Definition and topics of a fold that has groups or records here; None where nothing of it waits to be emitted."""
        keys = self.keys
        told: Any = await self.redis.hmget(keys.meta, ["definition", "topics", "fence"])
        if not all(told) or not any([await self.redis.zcount(key, "-inf", told[2]) for key in (keys.first, keys.outbox)]):
            return None
        return told[0].decode(), told[1].decode()

    async def skip(self, token: str, fence: int, to: int) -> None:
        """Moves the fence over offsets the log no longer has.

        Raises:
            RefusedError: Not the owner, another fence, or groups are open.
        """
        keys = self.keys
        reply = await self._scripts["skip"](
            keys=[keys.meta, keys.due, keys.first, keys.outbox, keys.group_prefix], args=[token, fence, to]
        )
        if reply[0] != b"ok":
            raise RefusedError("skip", reply[1].decode())

    async def define(self, token: str, definition: str) -> None:
        """Stores another definition of the fold.

        Raises:
            RefusedError: Not the owner, or something stored under the former definition is left.
        """
        keys = self.keys
        reply = await self._scripts["define"](keys=[keys.meta, keys.first, keys.outbox], args=[token, definition])
        if reply[0] != b"ok":
            raise RefusedError("define", reply[1].decode())

    async def outbox(self, token: str, fence: int, page: int) -> list[Sealed]:
        """Sealed records in the order of their first offsets.

        Args:
            token: Of the owner.
            fence: Expected.
            page: Records that one script reads.

        Raises:
            RefusedError: Not the owner, or another fence.
        """
        keys = self.keys
        found: list[Sealed] = []
        above = -1
        while True:
            reply = await self._scripts["outbox"](
                keys=[keys.meta, keys.due, keys.first, keys.outbox, keys.group_prefix], args=[token, fence, above, page]
            )
            if reply[0] != b"ok":
                raise RefusedError("outbox", reply[1].decode())
            if not reply[1]:
                return found
            found += map(Sealed.unpack, reply[1][::2])
            above = int(reply[1][-1])


def _number(reply: Any) -> int | None:
    return int(float(reply)) if reply else None
