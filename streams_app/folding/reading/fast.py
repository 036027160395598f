"""Fast readers for the most common folds (pure): the group key is one plain field, and names or whole events are kept.

Only the fields that the fold needs are decoded. The rest of an event is checked to be JSON and skipped; if only names are kept, its
numbers may have any size. Unusual events, and those with new names, are read by :class:`EventReader`, which determines the error.
Both readers must accept and reject the same events for the same reasons. Otherwise an event could be rejected while one of its
names is new to this process, and folded when it is read again later. :class:`ColumnarReader` uses the native core.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from streams_app.codec import TEXT_TAG, member_of
from streams_app.delivery.batch import SourceRecord
from streams_app.errors import BadEventError
from streams_app.exact_json import SHALLOW, SHALLOW_BYTES, is_depth_guarded, number_of
from streams_app.fold import RECORD_KEY, Fold
from streams_app.folding.core.event import DetailedEvent, FoldInput
from streams_app.folding.core.kept_events import SEPARATOR_BYTES
from streams_app.folding.core.names import Cache, bit_of, mask_of, names_of_mask
from streams_app.folding.reading.details import JSON_SPACES
from streams_app.folding.reading.details import SHALLOW as SHALLOW_KEPT
from streams_app.folding.reading.reader import EventReader, RangeFaults, decode_all
from streams_app.native import MASK_BYTES, NATIVE_ERROR, EventColumns, NativeCore, is_columnar
from streams_app.quiet_period import QuietPeriod
from streams_app.settings import Limits

logger = logging.getLogger(__name__)

FEW_UNUSUAL: Final = 64
"""If more events of a range than this are unusual, and more than an eighth, Python reads all: crossings cost more than events."""

KNOWN_GROUPS_MAX: Final = 20_000
"""Maximum number of groups whose key is cached; most events belong to few groups."""

LONG_NUMBER: Final = 200
"""A number with fewer digits than this, and an exponent of at most two digits, can be kept."""

_ESCAPED: Final = re.compile(r'[\x00-\x1f"\\]').search
"""Matches characters that JSON escapes in the name of a field; msgspec accepts no such name."""

_Changed = dict[str, msgspec.Raw] | list[Any] | str | int | float | bool | None


def is_plain_field(path: str) -> bool:
    """Return whether a path names a top-level field of events, which msgspec can decode without decoding the other fields."""
    return "." not in path and path != RECORD_KEY and not _ESCAPED(path)


def is_usual(fold: Fold) -> bool:
    """Return whether :class:`FastReader` can read a fold: it keeps only names, and group key and names are plain JSON fields."""
    if fold.is_by_functions or fold.reads_details or fold.keep != "names" or fold.only:
        return False
    if fold.format != "json" or not isinstance(fold.group_key, str) or not isinstance(fold.changed, str):
        return False
    return is_plain_field(fold.group_key) and is_plain_field(fold.changed)


_LARGE_EXPONENT: Final = re.compile(rb"[eE][+-]?[0-9]{3}").search
_LONG_NUMBER: Final = re.compile(rb"[0-9]{%d}" % LONG_NUMBER).search
"""Matches, together with :data:`_LARGE_EXPONENT`, each number that cannot be kept; other JSON may also match."""


def _is_unusual(value: bytes) -> bool:
    """Return whether an event may be nested too deeply to be encoded, or may contain a number that cannot be kept."""
    if len(value) < SHALLOW_KEPT:
        return _LARGE_EXPONENT(value) is not None
    is_deep = value.count(b"[") + value.count(b"{") > SHALLOW_KEPT
    return is_deep or _LARGE_EXPONENT(value) is not None or _LONG_NUMBER(value) is not None


def is_usual_kept(fold: Fold) -> bool:
    """Return whether :class:`FastKeptReader` can read a fold: it keeps whole JSON events, and the group key is a plain field."""
    is_by_event = fold.fields or fold.only or fold.close_when is not None or isinstance(fold.quiet_period, QuietPeriod)
    is_by_event = is_by_event or fold.dedupe_by is not None
    if fold.is_by_functions or not fold.keeps_events or is_by_event or fold.format != "json":
        return False
    return isinstance(fold.group_key, str) and is_plain_field(fold.group_key)


class _FastReader(EventReader):
    """Reads events whose group key is one plain field, without decoding them whole."""

    needs_decoded = False

    def __init__(self, fold: Fold, limits: Limits) -> None:
        super().__init__(fold, limits)
        self._members: dict[str, tuple[bytes, bytes]] = {}

    def _new_member(self, group: Any) -> tuple[bytes, bytes]:
        """Encode a group key; return its bytes in Redis, and the record key that events of the group should have.

        Raises:
            BadEventError: :class:`EventReader` must read the event, because the key is too long or not a scalar.
        """
        member = TEXT_TAG + group.encode() if type(group) is str else member_of((group,))
        if len(member) > self._limits.key_bytes + 1:
            raise BadEventError("too-large", "said by the slow way")
        cached = member, member[1:]
        if type(group) is str and len(self._members) < KNOWN_GROUPS_MAX:
            self._members[group] = cached
        return cached

    def _read_slowly(self, record: SourceRecord, faults: RangeFaults) -> Iterable[FoldInput]:
        return super().events([record], decode_all([record], self._limits), faults)


class FastKeptReader(_FastReader):
    """Reads whole events for ``keep = "events"``; decodes only the group key."""

    def __init__(self, fold: Fold, limits: Limits) -> None:
        super().__init__(fold, limits)
        event = msgspec.defstruct("Event", [("group", Any, None)], rename={"group": str(fold.group_key)}, gc=False)
        self._decode: Any = msgspec.json.Decoder(event, float_hook=number_of).decode

    def events(self, records: Sequence[SourceRecord], decoded: Sequence[Any] | None, faults: RangeFaults) -> Iterator[FoldInput]:
        decode, member_of_known, new_event = self._decode, self._members.get, tuple.__new__
        max_bytes, names = min(self._limits.value_bytes, self._fold.max_bytes - SEPARATOR_BYTES), dict[str, Any]()
        for record in records:
            value = record.value
            try:
                if not value or len(value) > max_bytes or _is_unusual(value):
                    yield from self._read_slowly(record, faults)
                    continue
                group = decode(value).group
                cached = member_of_known(group) if type(group) is str else None
                member, key = self._new_member(group) if cached is None else cached
                if not value.isascii():
                    value.decode()
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, BadEventError):
                yield from self._read_slowly(record, faults)
                continue
            stamp, offset = record.timestamp, record.offset
            if record.key != key:
                faults.misrouted += 1  # RangeFaults.count_misrouted, inlined: a call for each event would be slower
                faults.misrouted_example = offset
            yield new_event(
                DetailedEvent, (offset, -1 if stamp is None else stamp, member, names, False, value.strip(JSON_SPACES), 0, b"")
            )


class FastReader(_FastReader):
    """Reads events for ``keep = "names"``; decodes only the group key and the changed names."""

    def __init__(self, fold: Fold, limits: Limits) -> None:
        super().__init__(fold, limits)
        event = msgspec.defstruct(
            "Event",
            [("group", Any, None), ("changed", _Changed, None)],
            rename={"group": str(fold.group_key), "changed": fold.changed_path},
            gc=False,
        )
        self._decode: Any = msgspec.json.Decoder(event, float_hook=number_of).decode
        self._masks: Cache[tuple[str, ...], int] = Cache()

    def events(self, records: Sequence[SourceRecord], decoded: Sequence[Any] | None, faults: RangeFaults) -> Iterable[FoldInput]:
        decode, members = self._decode, self._members
        member_of_known, mask_of_known = members.get, self._masks.get
        max_bytes, max_key_bytes = self._limits.value_bytes, self._limits.key_bytes
        shallow_bytes = max_bytes if is_depth_guarded() else min(SHALLOW_BYTES, max_bytes)
        for record in records:
            value = record.value
            if (not value or len(value) > shallow_bytes) and (
                not value or len(value) > max_bytes or value.count(b"[") + value.count(b"{") > SHALLOW
            ):
                yield from self._read_slowly(record, faults)
                continue
            try:
                event = decode(value)
                group, names = event.group, event.changed
                cached = member_of_known(group) if type(group) is str else None
                if cached is not None:
                    member, key = cached
                elif type(group) is str and len(members) == KNOWN_GROUPS_MAX:
                    key = group.encode()
                    member = TEXT_TAG + key
                    if len(key) > max_key_bytes:
                        yield from self._read_slowly(record, faults)
                        continue
                else:
                    member, key = self._new_member(group)
                masked: Any = mask_of_known(tuple(names)) if type(names) is dict else None
                if masked is None:
                    masked = self._without_values(names)
                # Skipped fields are checked to be JSON, but not to be UTF-8.
                if not value.isascii():
                    value.decode()
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, BadEventError):
                yield from self._read_slowly(record, faults)
                continue
            stamp, offset = record.timestamp, record.offset
            if record.key != key:
                faults.misrouted += 1  # RangeFaults.count_misrouted, inlined: a call for each event would be slower
                faults.misrouted_example = offset
            yield offset, -1 if stamp is None else stamp, member, masked

    def _without_values(self, names: Any) -> int | dict[str, None]:
        """Return the changed names as a mask, or as a dict without values if one of them has no bit.

        Raises:
            BadEventError: Some names are invalid, or new, so that they must be checked by :class:`EventReader`.
        """
        if type(names) is not dict or len(names) > self._limits.names_per_event or not self._known_names.issuperset(names):
            raise BadEventError("no-changed", "said by the slow way")
        mask = mask_of(names)
        return dict.fromkeys(names) if mask is None else self._masks.add(tuple(names), names, mask)


class ColumnarReader(FastReader):
    """Reads the events of columns; records that are no columns are read as :class:`.FastReader` does."""

    def __init__(self, fold: Fold, limits: Limits, core: NativeCore) -> None:
        super().__init__(fold, limits)
        self._core = core
        self._columns = core.Reader(
            str(fold.group_key), fold.changed_path, limits.value_bytes, limits.key_bytes, limits.names_per_event
        )
        self._learned: set[str] = set()
        self._is_sound = True

    def events(self, records: Sequence[SourceRecord], decoded: Sequence[Any] | None, faults: RangeFaults) -> Iterable[FoldInput]:
        """Read the events of a range, all at once if the records are columns; see :meth:`.EventReader.events`."""
        found = self._read_columns(records, faults) if self._is_sound and is_columnar(records) else None
        return super().events(records, decoded, faults) if found is None else found

    def _read_columns(self, records: Sequence[SourceRecord], faults: RangeFaults) -> EventColumns | None:
        """Read a range by the native core; return None, and no faults, if Python must read the whole range."""
        found, by_python, left = self._core.EventColumns(records), RangeFaults(), 0
        while (at := self._advance(found)) is not None:
            left += 1
            if at < 0 or (left > FEW_UNUSUAL and left * 8 > at):
                return None
            for event in super().events(records[at : at + 1], None, by_python):
                offset, timestamp_ms, group, names = event[:4]
                mask = names if isinstance(names, int) else mask_of(names)
                if mask is None or mask.bit_length() > 8 * MASK_BYTES:
                    return None
                self._learn(mask)
                found.put(offset, timestamp_ms, group, mask.to_bytes(MASK_BYTES, "little"))
        faults.native = len(records) - left
        faults.rejected += by_python.rejected
        faults.misrouted += found.misrouted + by_python.misrouted
        for example in (found.misrouted_example, by_python.misrouted_example):
            faults.misrouted_example = faults.misrouted_example if example is None else example
        return found

    def _advance(self, found: EventColumns) -> int | None:
        """Do the same as :meth:`.EventColumns.advance`; return -1 after a fault: from then on Python reads all."""
        try:
            return found.advance(self._columns)
        except NATIVE_ERROR:
            logger.exception("native core failed, events are read by Python from now on fold=%s", self._fold.name)
            self._is_sound = False
            return -1

    def _learn(self, mask: int) -> None:
        for name in names_of_mask(mask).keys() - self._learned:
            self._learned.add(name)
            self._columns.learn(name, bit_of(name))
