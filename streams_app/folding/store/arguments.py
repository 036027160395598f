"""Packs the groups of a chunk as arguments of ``fold.lua`` (pure).

A session is a run that begins and ends within the chunk, because silence closes its group there. It is sent as a finished record;
the script only checks whether the group was open before, and adds the records of all sessions to the outbox as one entry. Any other
run is sent in the form in which Redis would store the group that the run opens.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from streams_app.delivery.scripts import PackedArgument
from streams_app.folding.core.chunks import Chunk, GroupRun
from streams_app.folding.core.closing import CLOSED, Bounds
from streams_app.folding.core.names import packed_names_of_mask, size_of
from streams_app.folding.core.native_chunks import NativeGroups
from streams_app.folding.core.record import SealedGroup
from streams_app.folding.store.codec import INFO_FIELD, pack_run, pack_session, packs_groups, run_ids
from streams_app.native import NATIVE_ERROR, ColumnPacker, loaded

logger = logging.getLogger(__name__)

MAX_PARTS: Final = 16_000
"""A script call gets no further group once its runs have this many parts, such as names: the script unpacks all of them first.

This also bounds an entry of the outbox: with no other parts, the sessions of a call have 400 kB, and those of one more group.
"""

BYTES_OF_A_PART: Final = 25
"""Number of bytes of sessions, of packed groups, or of values, that count as one part."""

_SPAN: Final = "Iddd"
_FIRST_OFFSET = attrgetter("first_offset")


class PackedSessions(NamedTuple):
    """The sessions of the groups of one call, as arguments of ``fold.lua``, which describes them.

    Attributes:
        sessions: Their packed records, in a row.
        lowest: Lowest first offset; 0 if there are none.
        starts: Number of sessions before each group, and of all.
        spans: Numbers of each session.
    """

    sessions: bytes = b""
    lowest: int = 0
    starts: bytes = bytes(4)
    spans: bytes = b""


class PackedGroups:
    """Groups of a chunk, encoded as arguments of one call of ``fold.lua``.

    Attributes:
        values: Two items for each group: its key, and its runs that are no sessions; see ``groups`` in ``fold.lua``.
        packed: The same as msgpack, if the native core has packed them; ``values`` is then empty.
        sealed: The sealed group of each session.
    """

    __slots__ = ("count", "packed", "sealed", "sessions", "values")

    def __init__(self) -> None:
        self.count = 0
        self.values: list[Any] = []
        self.packed: PackedArgument | None = None
        self.sealed: list[SealedGroup] = []
        self.sessions = PackedSessions()

    @property
    def argument(self) -> list[Any] | PackedArgument:
        return self.values if self.packed is None else self.packed


class GroupPacker:
    """Encodes the groups of a shard as arguments of ``fold.lua``; used for all chunks from one claim to the next."""

    def __init__(self, bounds: Bounds, epoch: bytes, partitions: int, *, keeps_values: bool) -> None:
        self.bounds = bounds
        self.epoch = epoch
        self.partitions = partitions
        self.keeps_values = keeps_values
        self._may_pack = packs_groups(bounds)
        self._native: ColumnPacker | None = None
        # A packed session has no room for a quiet period that events set, for the size of kept events, or for ids.
        has_more = bounds.max_bytes or bounds.leading or bounds.is_quiet_by_event or bounds.dedupes
        self._may_send_sessions = bounds.sessions and not has_more

    def groups(
        self, chunk: Chunk, members: Sequence[bytes], clock_ms: int, silent_from_ms: int, apart: Mapping[bytes, list[GroupRun]],
        *, may_pack: bool = False,
    ) -> PackedGroups:  # fmt: skip
        """Pack the first groups of ``members`` as arguments of one script call.

        At least one group is packed. Once the packed groups have :data:`MAX_PARTS` parts, no further one is added. A part is one
        item of a run, such as a changed name; :data:`BYTES_OF_A_PART` bytes of sessions, packed groups or values count as one, too.

        Args:
            apart: Runs that replace those of the chunk, by group key, for each group that a bound closes in the middle of a run;
                see :mod:`streams_app.folding.core.run_splitting`.
            may_pack: Whether small groups are stored packed; False: each group is stored as a hash, as older versions read it.
        """
        may_pack = may_pack and self._may_pack
        if isinstance(chunk.groups, NativeGroups) and not apart:
            return self._natively(chunk.groups, members, clock_ms, silent_from_ms, may_pack=may_pack)
        return self._by_python(chunk.groups, members, clock_ms, silent_from_ms, apart, may_pack=may_pack)

    def _by_python(
        self, groups: Mapping[bytes, list[GroupRun]], members: Sequence[bytes], clock_ms: int, silent_from_ms: int,
        apart: Mapping[bytes, list[GroupRun]], *, may_pack: bool,
    ) -> PackedGroups:  # fmt: skip
        packed = PackedGroups()
        epoch, keeps_values, bounds = self.epoch, self.keeps_values, self.bounds
        parts = size = 0
        starts, records, spans = [0], list[bytes](), list[int]()
        for member in members:
            if parts + size // BYTES_OF_A_PART >= MAX_PARTS:
                break
            runs, count = apart.get(member), 0
            if runs is None:
                runs = groups[member]
                count = self._session_count(runs, clock_ms) if self._may_send_sessions else 0
            for run in runs[:count]:
                sealed, record = pack_session(member, run, bounds, self.partitions, keeps_values=keeps_values)
                packed.sealed.append(sealed)
                records.append(record)
                spans += (size, run.first_offset, run.first_score, run.last_score)
                size += len(record)
            starts.append(len(records))
            rest: Any = False
            if count == len(runs) - 1 and self._are_plain(runs[count:]):
                rest = pack_run(runs[-1], epoch, silent_from_ms, keeps_values=keeps_values, may_pack=may_pack)
                parts += _parts_of(rest) if may_pack else len(rest)
            elif count < len(runs):
                rest = self._entries(runs[count:], silent_from_ms, may_pack=may_pack)
                parts += sum(map(_parts_of, rest))
            packed.values += (member, rest)
            packed.count += 1
            if keeps_values:
                parts += _bytes_of(rest) // BYTES_OF_A_PART
        lowest = min(map(_FIRST_OFFSET, packed.sealed), default=0)
        packed.sessions = PackedSessions(
            b"".join(records), lowest, struct.pack(f">{len(starts)}I", *starts), struct.pack(">" + _SPAN * len(records), *spans)
        )
        return packed

    def _entries(self, runs: Sequence[GroupRun], silent_from_ms: int, *, may_pack: bool) -> list[Any]:
        """Pack runs one by one, each with its ids if events have ids, and with the reason if its last event closes the group."""
        entries: list[Any] = []
        for run in runs:
            entries.append(pack_run(run, self.epoch, silent_from_ms, keeps_values=self.keeps_values, may_pack=may_pack))
            if self.bounds.dedupes:
                entries.append(run_ids(run))
            if run.closes:
                entries.append(CLOSED)
        return entries

    def _natively(
        self, groups: NativeGroups, members: Sequence[bytes], clock_ms: int, silent_from_ms: int, *, may_pack: bool
    ) -> PackedGroups:
        """Pack groups of the native core, which follow each other in the order of their bytes."""
        packed = PackedGroups()
        if not members:
            return packed
        if self._native is None:
            bounds = self.bounds
            self._native = loaded().Packer(
                self.epoch, bounds.quiet_ms, bounds.hold_ms, bounds.max_events, min(bounds.max_changed, 2**31),
                self._may_send_sessions, self.partitions,
            )  # fmt: skip
        try:
            packed.count, values, sealed, sessions = self._native.pack(
                groups.columns, members[0], len(members), clock_ms, silent_from_ms, may_pack, packed_names_of_mask
            )
        except NATIVE_ERROR:
            logger.exception("native core failed, groups are packed by Python")
            return self._by_python(groups, members, clock_ms, silent_from_ms, {}, may_pack=may_pack)
        packed.packed, packed.sealed = PackedArgument(values), [tuple.__new__(SealedGroup, fields) for fields in sealed]
        packed.sessions = PackedSessions(*sessions)
        return packed

    def _are_plain(self, runs: Iterable[GroupRun]) -> bool:
        """Return whether no bound closes a group that one of the runs opens, within the run or at its end, and no run has ids."""
        bounds = self.bounds
        if bounds.leading or bounds.dedupes:
            return False
        for run in runs:  # a generator would take as long as the rest
            lasted_ms = run.last_score - run.first_score
            if run.closes or not bounds.keeps_open(lasted_ms, run.events, size_of(run.names), run.bytes_kept):
                return False
        return True

    def _session_count(self, runs: Sequence[GroupRun], clock_ms: int) -> int:
        """Return how many of the runs silence has ended before ``clock_ms``: all, or all but the last.

        The result is 0 if another bound may close the group in one of them.
        """
        count = len(runs) - (clock_ms - runs[-1].last_score <= self.bounds.quiet_ms)
        return count if self._are_plain(runs[:count]) else 0


def _parts_of(entry: Any) -> int:
    packed = entry[2:]
    return len(entry) + (len(packed[0]) // BYTES_OF_A_PART if len(packed) == 1 and type(packed[0]) is bytes else 0)


def _bytes_of(rest: Any) -> int:
    runs = rest if rest and isinstance(rest[0], list) else [rest or []]
    # An entry without a packed group is a reason, or the ids of the run before it.
    values = (value for run in runs if type(run) is list and run[2:3] == [INFO_FIELD] for value in run[5::2])
    return sum(map(len, values))
