"""The state of a shard in Redis: one method for each script, and two that read keys directly.

Processors access the keys of their shards only through this module.

Each script is atomic on one shard. If its reply is ``refused``, :class:`.FencedError` is raised: this process is no longer the
owner, or the state in Redis is not what it expects. The shard must then be claimed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from itertools import repeat
from operator import attrgetter
from typing import Any, Final

import msgpack

from streams_app.delivery.fingerprints import Fingerprint, of_text, to_text
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.record import SealedGroup
from streams_app.folding.core.shard_clock import Clocks, RangeTime
from streams_app.folding.store.arguments import PackedGroups
from streams_app.folding.store.codec import unpack_open_group
from streams_app.folding.store.drop_request import dropped_groups
from streams_app.folding.store.keys import ShardKeys
from streams_app.folding.store.replies import (
    ClaimReply,
    FoldOutcome,
    FoldReply,
    ForgetReply,
    OutboxEntry,
    RangeInProgress,
    SealedGroups,
)
from streams_app.folding.store.scripts import FoldScripts

SPLIT_RECORDS: Final = 2_000
"""Number of records after which one script splits no further entry of the outbox."""

UNPACKED_GROUPS: Final = 500
"""Number of packed groups that one script unpacks, in some 6 ms."""

FINISHED_RANGES: Final = 500
"""Maximum number of ranges that one script removes, which takes some 3 ms."""

_FIRST_OFFSET = attrgetter("first_offset")


class ShardStore:
    """Reads and changes the state of one shard in Redis, by Lua scripts.

    ``token`` is that of the owner, and ``fence`` the one that is expected in Redis. Except for :meth:`claim`, a method with one of
    them raises :class:`.FencedError` if Redis has another one.
    """

    def __init__(self, scripts: FoldScripts, keys: ShardKeys) -> None:
        self.redis = scripts.redis
        self.keys = keys
        self._scripts = scripts.by_name
        self._names = list(astuple(keys))

    async def _call(self, script: str, **arguments: Any) -> Any:
        return await self._scripts[script](self._names, arguments)

    async def claim(
        self, token: str, begin: int | None, epoch: bytes, definition: str, owner: str = "", topics: str = "", topic_id: str = ""
    ) -> ClaimReply | None:
        """Make the holder of ``token`` the owner of the shard; return the state of the shard, which is created if there is none.

        Args:
            begin: Fence of a new state if there is none; None if no state is to be created.
            epoch: Four random bytes for a state that is created. They distinguish its groups from leftovers of an older state.
            topics: JSON array of output topic and dead-letter topic, for :mod:`streams_app.folding.agents.retired_folds`.
            topic_id: Id of the source topic; "" if it is unknown.

        Returns:
            The state of the shard; None if there is no state and ``begin`` is None.
        """
        reply = await self._call(
            "claim", token=token, begin="" if begin is None else str(begin), epoch=epoch, definition=definition, owner=owner,
            topics=topics, topic_id=topic_id,
        )  # fmt: skip
        if reply[0] == b"none":
            return None
        created, fence, clock, record_clock, late, stored_epoch, stored_definition, groups, *rest = reply
        *range_in_progress, log, lost, learned = rest
        to, cursor, cap, arrived, digest, quiet = range_in_progress
        in_progress = RangeInProgress(int(to), cursor, _range_time(cap, arrived, quiet), digest) if to else None
        clocks = Clocks(int(clock), int(record_clock), int(late))
        return ClaimReply(
            created == b"new", int(fence), clocks, stored_epoch, stored_definition.decode(), groups, in_progress,
            of_text(log.decode()), int(lost), learned,
        )  # fmt: skip

    async def fold(
        self, token: str, fence: int, after: RangeInProgress, cursor: bytes, groups: PackedGroups, clocks: Clocks,
        bounds: Bounds, *, is_last: bool, outbox_limit: int, max_work: int, partitions: int, log: Sequence[Fingerprint] = (),
        learned: bytes = b"", singly: bool = False,
    ) -> FoldReply:  # fmt: skip
        """Fold groups of the range that begins after the fence, by one call of ``fold.lua``.

        Args:
            after: The range, with its last offset, times and digest; its cursor is not used.
            cursor: The cursor that is expected in Redis; empty if the range has not begun.
            groups: Groups beyond the cursor, in the order of their bytes.
            clocks: The clocks as they are after the range is folded.
            max_work: Work, in microseconds of Redis time, after which the script folds no further group.
            log: Fingerprints of the folded records, up to the end of the range.
            learned: What was learned of the quiet period, stored with the end of the range; empty: it stays as it is stored.
            singly: Whether each sealed record becomes an entry of its own, because workers of an older version may claim the shard.

        Raises:
            FencedError: Another worker owns the shard, or the fence or the range in Redis is not the expected one.
        """
        cap_ms, arrived_ms, quiet_ms = after.time
        packed = groups.sessions
        reply = await self._call(
            "fold", token=token, fence=str(fence), to=str(after.to), cursor=cursor, is_last=is_last, clock=clocks.clock_ms,
            record_clock=str(clocks.record_clock_ms), late=str(clocks.late_ms), cap=str(cap_ms),
            arrived="" if arrived_ms is None else str(arrived_ms), quiet="" if quiet_ms is None else str(quiet_ms),
            digest=after.digest, outbox_limit=outbox_limit, max_work=max_work, partitions=partitions, log=to_text(log),
            learned=learned, singly=singly, groups=groups.argument, sessions=packed.sessions, lowest=packed.lowest,
            starts=packed.starts, spans=packed.spans, **bounds.arguments(),
        )  # fmt: skip
        outcome = FoldOutcome(reply[0].decode())
        if outcome is FoldOutcome.FULL:
            return FoldReply(outcome)
        if outcome is FoldOutcome.DETAIL:
            groups_found, ids = reply[1][1::2], reply[2] or repeat(())
            return FoldReply(outcome, detail=dict(zip(reply[1][::2], map(unpack_open_group, groups_found, ids), strict=True)))
        if outcome is FoldOutcome.ALREADY:
            return FoldReply(outcome, reply[1], int(reply[2]))
        _, new_cursor, clock, sealed, rewritten, sessions, taken, work, duplicates, first_offset = reply
        entry = OutboxEntry(_sealed(groups, sealed, rewritten, sessions), int(first_offset))
        return FoldReply(outcome, new_cursor, int(clock), entry, taken, work, duplicates=duplicates)

    async def seal(
        self, token: str, fence: int, clock_ms: int, bounds: Bounds, *, quiet: bool, limit: int, partitions: int,
        everything: bool = False, is_redis_full: bool = False, singly: bool = False,
    ) -> SealedGroups:  # fmt: skip
        """Move due groups into the outbox, and process requests to flush or drop groups.

        Args:
            clock_ms: Partition clock; stored if it is ahead of the stored one, no range is in progress and Redis is not full.
            quiet: Whether silence closes groups; False while a backlog is read with the backlog policy ``merge``.
            limit: Maximum number of groups that are sealed, or get a new timer because they are not due yet.
            everything: Whether to seal every open group, with the reason ``flush``.
            is_redis_full: Whether Redis is full. If not, groups are due by the stored clock while a range is in progress.
            singly: Whether each sealed record becomes an entry of its own, as in :meth:`fold`.
        """
        reply = await self._call(
            "seal", token=token, fence=str(fence), clock=clock_ms, is_redis_full=is_redis_full,
            quiet_ms=bounds.quiet_ms if quiet else None, hold_ms=bounds.hold_ms, everything=everything, dedupe=bounds.dedupes,
            limit=limit, partitions=partitions, singly=singly,
        )  # fmt: skip
        return SealedGroups(
            clock_ms=int(reply[1]),
            more=reply[2] == b"1",
            open_groups=reply[3],
            outbox_entries=reply[4],
            oldest_score_ms=_number(reply[5]),
            oldest_opened_ms=_number(reply[6]),
            sealed=SealedGroup.unpack_all(reply[7]),
            dropped=dropped_groups(reply[8]),
            first_offset=int(reply[9]),
        )

    async def finish(self, token: str, ranges: Sequence[tuple[int, int, int]]) -> int:
        """Remove entries from the outbox; return how many entries the outbox has afterwards.

        Args:
            ranges: Ranges of entries of which all records are acknowledged: for each the lowest and the highest first offset, both
                inclusive, and the number of entries in the range. A range that has another number of them in Redis is not removed.
        """
        left = 0
        for begin in range(0, max(1, len(ranges)), FINISHED_RANGES):
            page = [number for found in ranges[begin : begin + FINISHED_RANGES] for number in found]
            left = (await self._call("finish", token=token, ranges=page))[2]
        return left

    async def split(self, token: str) -> None:
        """Replace entries of the outbox with several records by an entry for each record, as workers of older versions read it."""
        above: Any = -1
        while above != b"":
            above = (await self._call("split", token=token, above=int(above), limit=SPLIT_RECORDS))[1]

    async def unpack(self, token: str, most: int | None = None) -> None:
        """Replace packed groups by a hash for each, as workers of older versions read them; none if they are more than ``most``."""
        while (await self._call("unpack", token=token, limit=UNPACKED_GROUPS, most=most))[1]:
            pass

    async def watermark(self) -> int | None:
        """Return the low watermark of the shard; None if Redis has no state.

        No token is needed: a watermark stays correct even if another worker claims the shard.
        """
        reply = await self._call("watermark")
        return None if reply is None else int(reply)

    async def topic_id(self) -> str:
        """Return the id of the source topic whose events were folded; "" if it is unknown."""
        found: Any = await self.redis.hget(self.keys.meta, "topic_id")
        return found.decode() if found else ""

    async def left_behind(self) -> tuple[str, str] | None:
        """Return the definition and topics, see :meth:`claim`; None if neither open groups nor sealed records are stored."""
        keys = self.keys
        stored: Any = await self.redis.hmget(keys.meta, ["definition", "topics", "fence"])
        if not all(stored) or not any([await self.redis.zcard(key) for key in (keys.first, keys.outbox)]):
            return None
        return stored[0].decode(), stored[1].decode()

    async def skip(self, token: str, fence: int, to: int) -> None:
        """Move the fence over offsets that the log no longer contains.

        Raises:
            FencedError: Also if groups are open.
        """
        await self._call("skip", token=token, fence=str(fence), to=str(to))

    async def rewind(self, token: str, fence: int, to: int, log: Sequence[Fingerprint], lost: int) -> None:
        """Move the fence back over offsets that the broker has lost.

        Args:
            log: Fingerprints of the records up to the new fence.
            lost: Number of offsets that the broker has lost so far, including these.

        Raises:
            FencedError: Also if Redis still stores open groups or sealed records.
        """
        await self._call("rewind", token=token, fence=str(fence), to=str(to), log=to_text(log), lost=str(lost))

    async def define(self, token: str, definition: str) -> None:
        """Replace the stored definition of the fold. A range that is partly folded will be folded again from its beginning.

        Raises:
            FencedError: Also if Redis still stores open groups or sealed records of the former definition.
        """
        await self._call("define", token=token, definition=definition)

    async def learned(self) -> bytes:
        """Return what was learned of the quiet period, see :mod:`streams_app.folding.core.auto_quiet`; empty if that is nothing."""
        found: Any = await self.redis.hget(self.keys.meta, "learned")
        return bytes(found or b"")

    async def forget(
        self, token: str, groups: Sequence[bytes], below: int, blocks: Sequence[tuple[bytes, bytes, int, int]], *,
        learns: bool = False, learned: bytes = b"", rest: bytes = b"",
    ) -> ForgetReply:  # fmt: skip
        """Remove what the shard stores of some groups; ``token`` becomes the owner if something is removed.

        Args:
            below: An open group stays if its first offset is not below this one.
            blocks: Entries of the outbox, exactly as stored. Of each, also what stays of it, the lowest first offset of the rest,
                and the number of removed records.
            learns: Whether the quiet period sets itself. Then ``token`` becomes the owner in any case, because the worker may have
                in memory what it has learned from the groups.
            learned: Result of :meth:`learned`.
            rest: The same without the groups.
        """
        reply = await self._call(
            "forget",
            token=token,
            groups=list(groups),
            below=below,
            blocks=list(blocks),
            learns=learns,
            learned=learned,
            rest=rest,
        )
        return ForgetReply(reply[1], int(reply[2]), reply[3], reply[4], has_changed=not reply[5])

    async def outbox(self, token: str, page: int) -> list[OutboxEntry]:
        """Return all entries of the outbox, in the order of their first offsets; one script reads some ``page`` entries."""
        found: list[OutboxEntry] = []
        above = -1
        while True:
            reply = await self._call("outbox", token=token, above=above, page=page)
            if not reply[1]:
                return found
            offsets = map(int, reply[1][1::2])
            found += map(OutboxEntry, map(SealedGroup.unpack_all, reply[1][::2]), offsets)
            above = int(reply[1][-1])


def _range_time(cap: bytes, arrived: bytes, quiet: bytes) -> RangeTime:
    return RangeTime(int(cap), int(arrived) if arrived else None, int(quiet) if quiet else None)


def _sealed(groups: PackedGroups, packed: bytes, rewritten: bytes, sessions: int) -> list[SealedGroup]:
    """Return the sealed groups that ``fold.lua`` has put into the outbox; those of one group in the order of first offsets.

    Args:
        rewritten: Packed array of the indexes of the sessions that are not in the outbox as they were sent.
        sessions: Number of sessions of the groups that the script folded.
    """
    left_out = set(msgpack.unpackb(rewritten))
    found = [sealed for at, sealed in enumerate(groups.sealed[:sessions]) if at not in left_out]
    if packed:
        found += SealedGroup.unpack_all(packed)
        found.sort(key=_FIRST_OFFSET)
    return found


def _number(reply: Any) -> int | None:
    return int(float(reply)) if reply else None
