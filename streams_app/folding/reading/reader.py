"""Reads the events of a fold from raw records, and rejects those that it cannot fold (pure).

The size of a value is checked before it is decoded, the sizes of keys and names afterwards. A rejected record goes to the
dead-letter topic byte for byte as it was received.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from streams_app.codec import TEXT_TAG, at_path, decode_object, member_of
from streams_app.conditions import conditions_of, matches
from streams_app.delivery.batch import SourceRecord
from streams_app.delivery.rejected_event import RejectedEvent
from streams_app.depth import TooDeepError, check_json_depth
from streams_app.errors import BadEventError, BeyondDoubleError
from streams_app.events.headers import is_erasure
from streams_app.exact_json import encode
from streams_app.fold import RECORD_KEY, Fold
from streams_app.folding.core.aggregates import Aggregates
from streams_app.folding.core.event import DetailedEvent, FoldInput, ScoredEvent, event_of
from streams_app.folding.reading.details import closing_rule, id_rule, kept_event, quiet_rule
from streams_app.schemas.values import KeyedValue
from streams_app.settings import Limits
from streams_app.unrepresentable import require_representable

KNOWN_NAMES_MAX: Final = 50_000
_NESTED: Final = frozenset({dict, list})


@dataclass(slots=True)
class RangeFaults:
    """The rejected events in a range of records, and the number of misrouted events, which are folded nevertheless.

    :meth:`EventReader.events` fills it while its events are iterated over.

    Attributes:
        rejected: Rejected events: those replayed for an unknown fold first, then the others in offset order.
        misrouted: Number of events whose record key is not their group key.
        misrouted_example: Offset of one of the misrouted events; None if there are none.
        native: Number of events that the native core has read.
    """

    rejected: list[RejectedEvent] = field(default_factory=list)
    misrouted: int = 0
    misrouted_example: int | None = None
    native: int = 0

    def count_misrouted(self, offset: int) -> None:
        self.misrouted += 1
        self.misrouted_example = offset


@dataclass(slots=True)
class DecodedRange(RangeFaults):
    """The events of a range of records that was read in one call, in offset order, with the faults of the range."""

    events: list[ScoredEvent] = field(default_factory=list)


def decode_all(records: Sequence[SourceRecord], limits: Limits) -> list[dict[str, Any] | BadEventError | None]:
    """Decode the value of each record as a JSON object, once for all folds of the source.

    Returns:
        For each record: the object, the error for which to reject it, or None for an empty value.
    """
    decoded: list[dict[str, Any] | BadEventError | None] = []
    append, most = decoded.append, limits.value_bytes
    for record in records:
        value = record.value
        if not value:
            append(None)
        elif len(value) > most:
            append(BadEventError("too-large", f"the value has {len(value)} bytes, the limit is {most}"))
        else:
            try:
                append(decode_object(value))
            except BadEventError as error:
                append(error)
    return decoded


class EventReader:
    """Decodes the records of a source topic into the events of one fold.

    Attributes:
        needs_decoded: Whether :meth:`read` and :meth:`events` use the decoded values, which the folds of a source share.
        reads_frames: Whether values may be framed by a schema registry, so that schemas must be fetched before values are read.
    """

    needs_decoded = True
    reads_frames = False

    def __init__(self, fold: Fold, limits: Limits) -> None:
        self._fold = fold
        self._limits = limits
        fields = (RECORD_KEY,) if fold.group_key == RECORD_KEY else fold.group_fields
        self._paths = [path.split(".") for path in fields]
        self._labels = tuple(map(repr, fields))
        self._simple = self._paths[0][0] if len(self._paths) == 1 and len(self._paths[0]) == 1 else None
        # The events of other formats have the record key as a field of this name.
        self._by_key = fold.group_key == RECORD_KEY and fold.format == "json"
        self._changed = fold.changed_field
        self._changed_path = fold.changed_path.split(".")
        self._keeps_values = fold.keeps_values
        self._aggregates = None if fold.aggregates is None else Aggregates.of(fold.aggregates)
        self._kept_event = kept_event(fold) if fold.keeps_events else None
        self._only = conditions_of(fold.only)
        self._closes = closing_rule(fold)
        self._shorter_ms = quiet_rule(fold)
        self._id = id_rule(fold, limits.key_bytes)
        self._reads_details = fold.reads_details
        self._kept_paths = _kept_paths(fold)
        self._known_names: set[str] = set()

    def framed_parts(self, records: Sequence[KeyedValue]) -> Iterator[bytes | None]:
        """Iterate over the record keys and values whose schemas must be fetched before :meth:`events`.

        The items include keys and values without a frame, those of a schema that was fetched before, and None. There are no items
        if :attr:`reads_frames` is False.
        """
        return iter(())

    def read(self, records: Sequence[SourceRecord], decoded: Sequence[Any] | None = None) -> DecodedRange:
        """Read a range of records in one call, with the arguments of :meth:`events`."""
        found = DecodedRange()
        found.events = [event_of(event) for event in self.events(records, decoded, found)]
        return found

    def events(self, records: Sequence[SourceRecord], decoded: Sequence[Any] | None, faults: RangeFaults) -> Iterable[FoldInput]:
        """Iterate over the events in a range of records.

        Args:
            records: The records of the range, in offset order.
            decoded: Result of :func:`decode_all` for the same records; if None, the records are decoded here.
            faults: Rejected events and the number of misrouted ones are added to it while the events are iterated over. An event
                is misrouted if its record key is not its group key.
        """
        if decoded is None:
            decoded = decode_all(records, self._limits)
        for record, value in zip(records, decoded, strict=True):
            if (value is None and self._ignores(record)) or (self._only and self._is_skipped(value)):
                continue
            try:
                event = value if type(value) is dict else self._rest_of(value)
                read = self._read_event(record, event, self._member(record, event))
            except BadEventError as error:
                faults.rejected.append(RejectedEvent(record, error.reason, error.detail))
                continue
            if record.key != read[2][1:]:
                faults.count_misrouted(record.offset)
            yield read

    def _ignores(self, record: SourceRecord) -> bool:
        """Return whether a record with an empty value is skipped."""
        return self._fold.tombstones == "ignore" or is_erasure(record)

    def _is_skipped(self, value: Any) -> bool:
        """Return whether an event does not match ``only``; False if it must be rejected, because it could not be decoded."""
        event = value.rest if isinstance(value, BeyondDoubleError) else value
        return type(event) is dict and not matches(self._only, event)

    def _read_event(self, record: SourceRecord, value: Any, member: bytes) -> FoldInput:
        stamp = -1 if record.timestamp is None else record.timestamp
        if not self._reads_details:
            return record.offset, stamp, member, self._names(value)
        if self._kept_event is None:
            names, json = self._names(value), b""
        else:
            names, json = {}, self._kept_event(record.value, value)
        if self._aggregates is not None:
            self._aggregates.check(names)
        closes = self._closes is not None and self._closes(value)
        shorter_ms = 0 if self._shorter_ms is None else self._shorter_ms(value)
        event_id = b"" if self._id is None else self._id(record, value)
        return DetailedEvent(record.offset, stamp, member, names, closes, json, shorter_ms, event_id)

    def _rest_of(self, fault: BadEventError | None) -> dict[str, Any]:
        """Return an event of which some values cannot be represented; fields that the fold does not read may have any value.

        Raises:
            BadEventError: The event must be rejected: its value is empty, the fold keeps such a value, or ``fault`` has another
                cause.
        """
        if fault is None:
            raise BadEventError("tombstone", "the value is empty")
        if not isinstance(fault, BeyondDoubleError):
            raise fault
        for path in self._kept_paths:
            require_representable(at_path(fault.rest, path) if path else fault.rest, ".".join(path))
        return fault.rest

    def _member(self, record: SourceRecord, value: dict[str, Any]) -> bytes:
        if self._by_key:
            member = self._member_of_key(record.key)
        elif self._simple is not None:
            scalar = value.get(self._simple)
            member = TEXT_TAG + scalar.encode() if type(scalar) is str else member_of((scalar,), self._labels)
        else:
            member = member_of(tuple(at_path(value, path) for path in self._paths), self._labels)
        if len(member) > self._limits.key_bytes + 1:
            raise BadEventError("too-large", f"the group key has more than {self._limits.key_bytes} bytes")
        return member

    @staticmethod
    def _member_of_key(key: bytes | None) -> bytes:
        if not key:
            raise BadEventError("no-group", "the record has no key")
        try:
            key.decode()
        except UnicodeDecodeError as error:
            raise BadEventError("no-group", "the record key is not UTF-8") from error
        return TEXT_TAG + key

    def _names(self, value: dict[str, Any]) -> dict[str, Any]:
        return self._names_of(at_path(value, self._changed_path))

    def _names_of(self, changed: Any) -> dict[str, Any]:
        kind = type(changed)
        if kind is dict:
            names: dict[str, Any] = changed
        elif kind is list:
            if not all(type(item) is str for item in changed):
                require_representable(changed, self._changed)
                raise BadEventError("no-changed", f"an item of {self._changed!r} is not a string")
            names = dict.fromkeys(changed)
        elif kind is str:
            names = {changed: None}
        else:
            require_representable(changed, self._changed)
            found = "missing or null" if changed is None else f"a JSON {kind.__name__}"
            raise BadEventError("no-changed", f"{self._changed!r} is {found}, not an object, an array or a string")
        if len(names) > self._limits.names_per_event:
            raise BadEventError("too-many-names", f"{len(names)} names, the limit is {self._limits.names_per_event}")
        if not names.keys() <= self._known_names:
            self._check_names(names)
        return self._kept(names) if self._keeps_values else names

    def _check_names(self, names: dict[str, Any]) -> None:
        for name in names:
            if len(name) * 4 > self._limits.name_bytes and len(name.encode()) > self._limits.name_bytes:
                raise BadEventError("too-large", f"a changed name has more than {self._limits.name_bytes} bytes")
        if len(self._known_names) < KNOWN_NAMES_MAX:
            self._known_names.update(names)

    def _kept(self, names: dict[str, Any]) -> dict[str, Any]:
        """Return names and values unchanged; reject values that are nested too deeply."""
        if _NESTED.isdisjoint(map(type, names.values())):
            return names
        for name, value in names.items():
            if type(value) in _NESTED:
                try:
                    check_json_depth(encode(value), value)
                except (orjson.JSONEncodeError, TooDeepError) as error:
                    raise BadEventError("no-value", f"the value of {name!r} cannot be kept: {error}") from error
        return names


def _kept_paths(fold: Fold) -> list[list[str]]:
    """Return the paths of the parts of an event that a fold keeps whole; an empty path is the whole event."""
    if fold.is_by_functions or (fold.keeps_events and not fold.fields):
        return [[]]
    if fold.keeps_events:
        return [name.split(".") for name in fold.fields]
    return [fold.changed_path.split(".")] if fold.keeps_values else []
