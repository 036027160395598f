"""Renders the folded record of a sealed group (pure).

The bytes of a record depend only on the sealed group, the source partition, and the definition and lost offsets stored with the
shard. So a record that is sent again after a crash has the same id and content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgpack
import orjson

from streams_app.codec import TEXT_TAG, canonical_bytes, scalars_of
from streams_app.fold import EVENTS, RECORD_KEY, Fold
from streams_app.folding.core.aggregates import json_of
from streams_app.folding.core.kept_events import events_of
from streams_app.folding.core.names import NameSet, shared_names_of_bytes
from streams_app.native import ColumnRecords, NativeCore

VERSION_SHIFT: Final = 2**40
"""The version of a record is the partition count times this, plus its last offset, plus the number of lost offsets. A version is
less than 2^53 with up to 8 191 partitions.
"""

MAX_RECORD_BYTES: Final = 900_000
"""Maximum size of a value. A larger one is split by changed names, because brokers permanently reject records over about 1 MB by
default.
"""

FIELDS: Final = "fields"
FUNCTION: Final = "function"
UNKNOWN: Final = "unknown"
"""Origins of group keys and changed names: fields of the event, a function of the user, or unknown, because an older version has
stored the shape without origins. A group key may also come from the record key."""


@dataclass(frozen=True, slots=True)
class RecordShape:
    """The part of a fold's definition that determines what its stored state means, and how it becomes a record.

    Attributes:
        keep: ``names``, ``last`` or ``events``; or a JSON object with the aggregate of each name, sorted by name.
        group_from: Origin of the group key. It distinguishes the record key from a field named ``key``, which looks the same in
            records.
        fields: Fields of the events that ``keep = "events"`` keeps; empty for whole events, and for other values of ``keep``.
    """

    fold: str
    group_fields: tuple[str, ...]
    changed: str
    keep: str
    group_from: str = FIELDS
    changed_from: str = FIELDS
    fields: tuple[str, ...] = ()

    @classmethod
    def of(cls, fold: Fold) -> RecordShape:
        """All functions of the user count as equal, because their results are unknown."""
        group_from = RECORD_KEY if fold.group_key == RECORD_KEY else FUNCTION if callable(fold.group_key) else FIELDS
        changed_from = FUNCTION if callable(fold.changed) else FIELDS
        keep = fold.keep if isinstance(fold.keep, str) else orjson.dumps(fold.keep, option=orjson.OPT_SORT_KEYS).decode()
        return cls(fold.name, fold.group_fields, fold.changed_field, keep, group_from, changed_from, fold.fields)

    def to_text(self) -> str:
        """Return the shape as JSON, which is stored with the state, so that a worker detects a changed definition."""
        shape = [self.fold, self.group_fields, self.changed, self.keep, self.group_from, self.changed_from]
        return orjson.dumps([*shape, self.fields] if self.fields else shape).decode()

    @classmethod
    def from_text(cls, text: str) -> RecordShape:
        """Parse the result of :meth:`to_text`.

        A text of an older version lacks the origins; it differs from every declared fold, so the definition counts as changed.
        """
        fold, group_fields, changed, keep, *origins = orjson.loads(text)
        group_from, changed_from, *fields = origins or (UNKNOWN, UNKNOWN)
        return cls(fold, tuple(group_fields), changed, keep, group_from, changed_from, tuple(*fields))

    def declared_keep(self) -> str | dict[str, str]:
        return orjson.loads(self.keep) if self.keep.startswith("{") else self.keep


class SealedGroup(NamedTuple):
    """A sealed group, as the outbox stores it.

    Attributes:
        member: Group key as bytes, see :func:`streams_app.codec.member_of`.
        first_event_ms: Lowest record timestamp of its events.
        last_event_ms: Highest record timestamp of its events.
        reason: Why it was closed or emitted, one of :data:`streams_app.folding.core.closing.REASONS`.
        due_ms: Time from which that reason applied, in ms, by the partition clock.
        partitions: Partition count of the source when the group was sealed.
        names: The changed names with their stored values: JSON, an aggregate, or ``b""`` if values are not kept. If events are
            kept, the packed events of each run, by the first offset of the run.
    """

    member: bytes
    first_offset: int
    last_offset: int
    events: int
    first_event_ms: int
    last_event_ms: int
    reason: str
    due_ms: int
    partitions: int
    names: dict[str, bytes]

    @classmethod
    def unpack(cls, packed: bytes) -> SealedGroup:
        return cls._of(msgpack.unpackb(packed, raw=True, use_list=False))

    @classmethod
    def unpack_all(cls, packed: bytes) -> list[SealedGroup]:
        """Unpack several concatenated groups."""
        unpacker = msgpack.Unpacker(raw=True, use_list=False, max_buffer_size=len(packed))
        unpacker.feed(packed)
        return [cls._of(fields) for fields in unpacker]

    @classmethod
    def _of(cls, fields: tuple[Any, ...]) -> SealedGroup:
        member, first, last, events, low, high, reason, due, partitions, packed = fields
        # Names are a map, or an array of name, value, name …, as seal.lua reads them; Lua also packs an empty map as an array.
        keys, values = (packed[::2], packed[1::2]) if isinstance(packed, tuple) else (packed, packed.values())
        names: dict[str, bytes]
        if any(values):
            names = {name.decode(): value for name, value in zip(keys, values, strict=True)}
        else:
            names = shared_names_of_bytes(keys)
        # Lua packs numbers beyond 2^63, such as invalid record timestamps, as doubles. The constructor of a named tuple is slow.
        return tuple.__new__(cls, (member, first, last, events, int(low), int(high), reason.decode(), int(due), partitions, names))

    @property
    def version(self) -> int:
        """Return the version of the record without lost offsets: partition count of the source * 2^40 + offset of the last event.

        The version in a record is this number plus the number of lost offsets. The newer of two records of one group has the higher
        version.
        """
        return self.partitions * VERSION_SHIFT + self.last_offset


class FoldedRecord(NamedTuple):
    """A folded record for the output topic: header ``fold-id``, bytes of the group key, and JSON."""

    fold_id: bytes
    key: bytes
    value: bytes


def fold_id(fold: str, topic: str, partition: int, first_offset: int, last_offset: int, lost: int = 0) -> str:
    """Return the id of a folded record. It depends only on the source, so a record that is sent again has the same id.

    The number of ``lost`` offsets distinguishes the record from those of the lost events, which had the same offsets.
    """
    return f"{fold}:{topic}:{partition}:{first_offset}-{last_offset}{_behind(lost)}"


def _behind(lost: int) -> str:
    return f"+{lost}" if lost else ""


class Renderer:
    """Renders the sealed groups of one shard as records; the parts that all records have in common are rendered once.

    Most groups have one text field and keep only names, and few of their sets of names differ. Their records are assembled from
    prepared text. All others are rendered by :func:`render`, which produces the same bytes.
    """

    def __init__(self, shape: RecordShape, topic: str, partition: int, lost: int = 0) -> None:
        self.shape = shape
        self.lost = lost
        self._of = shape, topic, partition, lost
        self._is_usual = len(shape.group_fields) == 1 and shape.keep == "names"
        self._id = fold_id(shape.fold, topic, partition, 0, 0).removesuffix("0-0")
        group_field, changed, name = (_json(text) for text in (shape.group_fields[0], shape.changed, shape.fold))
        self._between = f"{{{group_field}:", f",{changed}:", f',"fold":{{"id":{_json(self._id)[:-1]}', f'","name":{name},"reason":"'

    def records(self, groups: Iterable[SealedGroup]) -> Iterator[tuple[int, bytes, bytes, bytes]]:
        """Render sealed groups as records; a group that is too large for one record becomes several, see :func:`render`.

        Yields:
            For each record, the position of its group in ``groups``, followed by the three fields of a :class:`FoldedRecord`.
        """
        id_begin, is_usual, dumps = self._id, self._is_usual, orjson.dumps
        behind = _behind(self.lost)
        before_group, before_names, before_span, before_reason = self._between
        for position, sealed in enumerate(groups):
            member, first, last, events, low, high, reason, _, partitions, names = sealed
            if is_usual and type(names) is NameSet and member[:1] == TEXT_TAG:
                key = member[1:]
                span = f"{first}-{last}{behind}"
                version = partitions * VERSION_SHIFT + last + self.lost
                value = (
                    f"{before_group}{dumps(key.decode()).decode()}{before_names}{names.listed}{before_span}{span}{before_reason}{reason}"
                    f'","events":{events},"first_event_ms":{low},"last_event_ms":{high},"version":{version}}}}}'
                ).encode()
                if len(value) <= MAX_RECORD_BYTES:
                    yield position, (id_begin + span).encode(), key, value
                    continue
            for record in render(sealed, *self._of):
                yield position, *record

    def columns(self, core: NativeCore, groups: list[SealedGroup]) -> ColumnRecords | None:
        """Render sealed groups with the native core, as :meth:`records` does; return None if there is no room for the records.

        Groups with unusual keys or contents are rendered by :func:`render`.

        Raises:
            RuntimeError: The native core has a fault.
        """
        found = core.FoldedRecords((self._id, *self._between, _behind(self.lost)), self.lost, MAX_RECORD_BYTES)
        unusual = found.advance(groups, 0) if self._is_usual else 0
        while unusual is not None and unusual < len(groups):
            for record in render(groups[unusual], *self._of):
                if not found.put(unusual, *record):
                    return None
            unusual = found.advance(groups, unusual + 1) if self._is_usual else unusual + 1
        return found


def render(sealed: SealedGroup, shape: RecordShape, topic: str, partition: int, lost: int = 0) -> list[FoldedRecord]:
    """Render a sealed group as one record; if that would be too large, as several with ``#1``, ``#2`` … appended to the id.

    A group with kept events or with a single name always becomes one record, however large it is.
    """
    base = fold_id(shape.fold, topic, partition, sealed.first_offset, sealed.last_offset, lost)
    names = sorted(sealed.names)
    value = _value(sealed, shape, base, names, lost)
    key = canonical_bytes(sealed.member)
    if len(value) <= MAX_RECORD_BYTES or len(names) <= 1 or shape.keep == EVENTS:
        return [FoldedRecord(base.encode(), key, value)]
    records = []
    for number, part in enumerate(_parts(sealed, names), start=1):
        part_id = f"{base}#{number}"
        records.append(FoldedRecord(part_id.encode(), key, _value(sealed, shape, part_id, part, lost)))
    return records


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _parts(sealed: SealedGroup, names: list[str]) -> list[list[str]]:
    """Split the changed names so that each record stays below the maximum; a name that exceeds it alone becomes its own part."""
    room = MAX_RECORD_BYTES - 4_096
    parts: list[list[str]] = [[]]
    used = 0
    for name in names:
        size = len(orjson.dumps(name)) + len(sealed.names[name]) + 6
        if used + size > room and parts[-1]:
            parts.append([])
            used = 0
        parts[-1].append(name)
        used += size
    return parts


def _value(sealed: SealedGroup, shape: RecordShape, record_id: str, names: list[str], lost: int) -> bytes:
    changed: Any = names
    if shape.keep == EVENTS:
        # A script that failed may have left events outside these offsets.
        own = range(sealed.first_offset, sealed.last_offset + 1)
        changed = [orjson.Fragment(json) for offset, json in events_of(sealed.names) if offset in own]
    elif shape.keep != "names":
        changed = {name: orjson.Fragment(json_of(sealed.names[name] or b"null")) for name in names}
    return orjson.dumps(
        {
            **dict(zip(shape.group_fields, scalars_of(sealed.member), strict=True)),
            shape.changed: changed,
            "fold": {
                "id": record_id,
                "name": shape.fold,
                "reason": sealed.reason,
                "events": sealed.events,
                "first_event_ms": sealed.first_event_ms,
                "last_event_ms": sealed.last_event_ms,
                "version": sealed.version + lost,
            },
        }
    )
