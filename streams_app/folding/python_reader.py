"""Events read by a user's own functions: what TOML cannot say (pure, but for what those functions do).

For Avro, Protobuf or anything else that is not JSON, for a group key that must be computed, for events that should not be folded
at all. Whatever such a function raises makes a dead letter with the reason ``user-error``; it never stops a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from streams_app.codec import member_of
from streams_app.errors import BadEventError
from streams_app.folding.batch import Event, FoldEvent
from streams_app.folding.definition import Fold
from streams_app.folding.fast_reader import FastReader, is_usual
from streams_app.folding.reader import EventReader, RawRecord, Reading, Refused, decode_all
from streams_app.settings import Limits

T = TypeVar("T")


def reader_of(fold: Fold, limits: Limits) -> EventReader:
    """The reader a fold needs: the fast one wherever no function of the user's is involved."""
    own = (fold.decode, fold.source_filter)
    if any(own) or callable(fold.group_key) or callable(fold.changed):
        return PythonReader(fold, limits)
    if is_usual(fold):
        return FastReader(fold, limits)
    return EventReader(fold, limits)


class PythonReader(EventReader):
    """Reads events by ``Fold.decode``, ``source_filter``, ``group_key`` and ``changed``, as far as they are functions."""

    def events(self, records: Sequence[RawRecord], decoded: Sequence[Any] | None, reading: Reading) -> Iterator[Event]:
        """Reads a range; see :meth:`EventReader.events`.

        An event for which ``source_filter`` returns something false is neither folded nor a dead letter.
        """
        if decoded is None:
            decoded = decode_all(records, self._limits)
        for record, value in zip(records, decoded, strict=True):
            try:
                event = self._event(record, value)
            except BadEventError as error:
                reading.refused.append(Refused(record, error.reason, error.detail))
                continue
            if event is None:
                continue
            if record.key != event.group[1:]:
                reading.misrouted += 1
                reading.misrouted_example = record.offset
            yield event

    def _event(self, record: RawRecord, value: Any) -> FoldEvent | None:
        fold = self._fold
        if not record.value:
            if fold.tombstones == "ignore":
                return None
            raise BadEventError("tombstone", "the value is empty")
        if len(record.value) > self._limits.value_bytes:
            raise BadEventError("too-large", f"the value has {len(record.value)} bytes, the limit is {self._limits.value_bytes}")
        if fold.decode is not None:
            value = _called("decode", fold.decode, record.value)
        elif isinstance(value, BadEventError):
            raise value
        if fold.source_filter is not None and not _called("source_filter", fold.source_filter, value):
            return None
        if type(value) is not dict and not (callable(fold.group_key) and callable(fold.changed)):
            raise BadEventError("not-an-object", f"decode returned {type(value).__name__}, not a dict")
        stamp = record.timestamp
        return FoldEvent(record.offset, -1 if stamp is None else stamp, self._group(record, value), self._changed_names(value))

    def _group(self, record: RawRecord, value: Any) -> bytes:
        if not callable(self._fold.group_key):
            return self._member(record, value)
        member = member_of((_called("group_key", self._fold.group_key, value),))
        if len(member) > self._limits.key_bytes + 1:
            raise BadEventError("too-large", f"the group key has more than {self._limits.key_bytes} bytes")
        return member

    def _changed_names(self, value: Any) -> dict[str, Any]:
        if not callable(self._fold.changed):
            return self._names(value)
        changed = _called("changed", self._fold.changed, value)
        if isinstance(changed, Mapping):
            names: Any = dict(changed)
        elif isinstance(changed, str) or not isinstance(changed, Iterable):
            names = changed
        else:
            names = list(changed)
        return self._names_of(names)


def _called(name: str, function: Callable[[Any], T], argument: Any) -> T:
    """Whatever a user's function raises is the event's fault, or its own: the event is kept, and the partition goes on."""
    try:
        return function(argument)
    except Exception as error:  # the point of it
        raise BadEventError("user-error", f"{name}: {type(error).__name__}: {error}") from error
