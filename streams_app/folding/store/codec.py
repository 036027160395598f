"""Encodes and decodes groups as they are stored in Redis (pure).

An open group is a hash, its *sidecar*: one field per changed name, or per run if events are kept, and one field,
:data:`INFO_FIELD`, with its offsets, times and counts. Most small groups are *packed* instead: the same numbers and a map of the
names, one after the other, are one value of the hash ``open`` of the shard. A sealed group is a record in the outbox, see
:class:`streams_app.folding.core.record.SealedGroup`. ``lua/shared/group.lua`` reads and writes both.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgpack

from streams_app.folding.core.aggregates import stored_value
from streams_app.folding.core.chunks import GroupRun
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.kept_events import packed_events
from streams_app.folding.core.model import OpenGroup
from streams_app.folding.core.names import NameSet, names_of_mask, shared_names
from streams_app.folding.core.record import SealedGroup

INFO_FIELD: Final = b"\xff"
"""Name of the field with the numbers of a group. No changed name is equal to it, because it is not UTF-8."""

PACKED_BYTES: Final = 400
"""Maximum size of the packed names of a packed group, in bytes; ``lua/shared/group.lua`` has the same number.

Each update writes all names of a packed group again, which from some 20 names on costs more than one more field of a hash.
"""


def packs_groups(bounds: Bounds) -> bool:
    """Return whether small groups of a fold with these bounds are packed: without kept events, early records and ids of events."""
    return not (bounds.max_bytes or bounds.leading or bounds.dedupes)


pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack


class StoredGroup(NamedTuple):
    """The numbers of an open group, as its sidecar (its hash in Redis) contains them, see :meth:`pack`. Times are in ms."""

    epoch: bytes
    first_offset: int
    last_offset: int
    opened_ms: int
    score_ms: int
    events: int
    low_ms: int
    high_ms: int
    names: int
    silent_from_ms: int
    shorter_ms: int = 0
    ids: int = 0
    duplicates: int = 0

    def pack(self) -> bytes:
        """Encode the numbers as Redis stores them in :data:`INFO_FIELD`: a msgpack array.

        Most numbers are differences, because small numbers need less memory:

        =================  =======================================================================================================
        epoch              four bytes of the state it belongs to; a group with other bytes is a leftover of an older state. A packed
                           group has none, because a new state removes all of them
        first_offset       of the source
        offsets            last offset minus first offset
        opened             score of the first event, ms
        scores             score of the last event minus ``opened``
        events             number of events
        low                lowest record timestamp minus ``opened``
        stamps             highest record timestamp minus the lowest
        names              an upper bound of the number of changed names; if events are kept, their size in bytes
        silence            time from which silence counts, minus the score of the last event
        shorter            longest quiet period of the fold minus the one that the last event sets
        ids                number of ids, which are in another key (``dedupe_by``)
        duplicates         number of events that were ignored, because the group had their id
        =================  =======================================================================================================

        Of the last four, trailing zeros are omitted.
        """
        opened = self.opened_ms
        numbers = (
            self.epoch, self.first_offset, self.last_offset - self.first_offset, opened, self.score_ms - opened, self.events,
            self.low_ms - opened, self.high_ms - self.low_ms, self.names,
        )  # fmt: skip
        rest = (max(0, self.silent_from_ms - self.score_ms), self.shorter_ms, self.ids, self.duplicates)
        return pack((*numbers, *_without_zeros(rest)))

    @classmethod
    def unpack(cls, packed: bytes) -> StoredGroup:
        """Decode the result of :meth:`pack`, also as a script has written it."""
        numbers = msgpack.unpackb(packed, raw=True)
        epoch = numbers.pop(0) if isinstance(numbers[0], bytes) else b""
        first, offsets, opened, scores, events, low, stamps, names, *rest = numbers
        score, lowest = opened + scores, opened + low
        silence, shorter, ids, duplicates = (*rest, 0, 0, 0, 0)[:4]
        return cls(
            epoch, first, first + offsets, opened, score, events, lowest, lowest + stamps, names, score + silence, shorter, ids,
            duplicates,
        )  # fmt: skip


def _without_zeros(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Return the last numbers of a packed group without trailing zeros."""
    while numbers and not numbers[-1]:
        numbers = numbers[:-1]
    return numbers


def parts_of(packed: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Return the numbers of a packed group, as :meth:`StoredGroup.unpack` takes them, and its names with their values."""
    unpacker = msgpack.Unpacker(raw=True)
    unpacker.feed(packed)
    unpacker.skip()
    return packed[: unpacker.tell()], dict(unpacker.unpack() or {})  # Lua packs an empty map as an array


TIMERS_IN_A_BATCH: Final = 64
"""Maximum number of groups in a batch of the key ``timers``; ``lua/shared/timers.lua`` has the same number."""


def timers_in(batch: bytes) -> list[tuple[int, int]]:
    """Return the timers in a batch, each after the first offset of its group, which may be closed."""
    values = msgpack.unpackb(batch)
    return list(zip(accumulate(values[1::2]), accumulate(values[::2]), strict=True))


def unpack_open_group(content: Sequence[bytes], ids: Sequence[Any] = ()) -> OpenGroup | None:
    """Decode an open group, without values, from the names of the fields of its sidecar and its packed numbers.

    Return None if ``content`` is empty, because the group is not open. ``ids`` are stored ids and offsets, one after the other.
    """
    if not content:
        return None
    *fields, numbers = content
    stored = StoredGroup.unpack(numbers)._asdict()
    del stored["epoch"]
    names = {field.decode(): b"" for field in fields if field != INFO_FIELD}
    known = dict(zip(ids[::2], ids[1::2], strict=True))
    return OpenGroup(**stored | {"names": names, "bytes_kept": stored["names"], "ids": known})


def pack_run(run: GroupRun, epoch: bytes, silent_from_ms: int, *, keeps_values: bool, may_pack: bool = False) -> list[Any]:
    """Pack a run for ``fold.lua``, in the form of the group that the run would open.

    The list begins with the first offset and the timer of the group. The packed group follows, if ``may_pack`` is True and its
    names need at most :data:`PACKED_BYTES`; otherwise the name and the value of each field of its sidecar.
    """
    opened, score, first, low = run.first_score, run.last_score, run.first_offset, run.low_ms
    silent = score if score > silent_from_ms else silent_from_ms
    names: dict[str, bytes] = run_values(run) if keeps_values else run_names(run)
    shorter = run.shorter_ms
    numbers: tuple[Any, ...] = (
        first, run.last_offset - first, opened, score - opened, run.events, low - opened, run.high_ms - low,
        run.bytes_kept or len(names),
    )  # fmt: skip
    if shorter or silent > score:
        numbers += _without_zeros((silent - score, shorter))
    if may_pack:
        packed = names.packed if type(names) is NameSet else pack(names)
        if len(packed) <= PACKED_BYTES:
            return [first, silent - shorter, pack(numbers) + packed]
    info = pack((epoch, *numbers))
    if type(names) is NameSet:
        return [first, silent - shorter, INFO_FIELD, info, *names.fields]
    return [first, silent - shorter, INFO_FIELD, info, *(part for item in names.items() for part in item)]


def run_values(run: GroupRun) -> dict[str, bytes]:
    """Return the fields that store a run in a sidecar, with their values: one for each changed name.

    If events are kept, this is one field, the packed events by the first offset.
    """
    if run.events_kept is not None:
        if run.packed_kept is None:
            run.packed_kept = packed_events((event for event, _ in run.events_kept), run.first_offset)
        return {str(run.first_offset): run.packed_kept}
    return {name: stored_value(value) for name, value in run.changed.items()}


def run_ids(run: GroupRun) -> list[Any]:
    """Return the duplicates that follow a run, and the id and offset of each of its events, as ``fold.lua`` takes them."""
    kept = run.events_kept
    ids = run.ids or () if kept is None else [part for event, _ in kept for part in (event.id, event.offset)]
    return [run.duplicates, *ids]


def run_names(run: GroupRun) -> NameSet:
    """Return the changed names of a run, without values."""
    names = run.names
    return names_of_mask(names) if isinstance(names, int) else shared_names(names)


def pack_session(member: bytes, run: GroupRun, bounds: Bounds, partitions: int, *, keeps_values: bool) -> tuple[SealedGroup, bytes]:
    """Seal a run that opens a group and that silence closes within the same chunk.

    Return the record for the outbox, and the same packed. If the group was open before, the script makes another record instead.
    """
    names: dict[str, bytes] = run_values(run) if keeps_values else run_names(run)
    reason, due_ms = bounds.closed_by(run.first_score, run.last_score)
    numbers = member, run.first_offset, run.last_offset, run.events, run.low_ms, run.high_ms, reason, due_ms, partitions
    # 0x9a begins an array of ten values; the last one may be packed already.
    packed = b"\x9a" + pack(numbers)[1:] + (names.packed if type(names) is NameSet else pack(names))
    # Called thousands of times in a row; the constructor of a named tuple is slow.
    return tuple.__new__(SealedGroup, (*numbers, names)), packed
