"""Reads events by functions of the user, for folds that TOML cannot express (pure, except for these functions).

The functions decode formats other than JSON, compute group keys, and skip events. If one raises, or returns a value that JSON and
UTF-8 cannot represent, the event becomes a dead letter with the reason ``user-error``, and the partition continues. All results are
checked here, because an error at a later step would end this worker and then the next owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import orjson

from streams_app.codec import at_path, member_of
from streams_app.delivery.batch import SourceRecord
from streams_app.delivery.rejected_event import RejectedEvent
from streams_app.depth import TooDeepError, check_json_depth
from streams_app.errors import BadEventError
from streams_app.exact_json import decode, encode
from streams_app.fold import Fold
from streams_app.folding.core.event import FoldInput
from streams_app.folding.reading.reader import EventReader, RangeFaults, decode_all
from streams_app.quiet_period import QuietPeriod
from streams_app.settings import Limits

T = TypeVar("T")

DETAIL_CHARACTERS: Final = 500
"""Maximum length of the text of a user's error in a dead letter."""

_TEXT: Final = frozenset({str})


class PythonReader(EventReader):
    """Reads the events of a fold whose settings include functions of the user, such as ``decode`` or ``group_key``."""

    def __init__(self, fold: Fold, limits: Limits) -> None:
        super().__init__(fold, limits)
        if callable(fold.close_when):
            function = _truth_of(fold.close_when)
            self._closes = lambda event: _called("close_when", function, event)
        if isinstance(fold.quiet_period, QuietPeriod) and (rule := self._shorter_ms) is not None:
            self._shorter_ms = lambda event: _called("quiet_period", rule, event)
        if callable(fold.dedupe_by) and (id_of := self._id) is not None:
            self._id = lambda record, event: _called("dedupe_by", partial(id_of, record), event)

    def events(self, records: Sequence[SourceRecord], decoded: Sequence[Any] | None, faults: RangeFaults) -> Iterator[FoldInput]:
        """An event that does not match ``only``, or for which ``source_filter`` returns a false value, is skipped."""
        if decoded is None:
            decoded = decode_all(records, self._limits)
        for record, value in zip(records, decoded, strict=True):
            try:
                event = self._event(record, value)
            except BadEventError as error:
                faults.rejected.append(RejectedEvent(record, error.reason, _printable(error.detail)))
                continue
            except Exception as error:  # noqa: BLE001  # objects of the user may raise anywhere, for example in __repr__
                faults.rejected.append(RejectedEvent(record, "user-error", _text_of(error)))
                continue
            if event is None:
                continue
            if record.key != event[2][1:]:
                faults.count_misrouted(record.offset)
            yield event

    def _event(self, record: SourceRecord, value: Any) -> FoldInput | None:
        fold = self._fold
        if not record.value:
            if self._ignores(record):
                return None
            raise BadEventError("tombstone", "the value is empty")
        if len(record.value) > self._limits.value_bytes:
            raise BadEventError("too-large", f"the value has {len(record.value)} bytes, the limit is {self._limits.value_bytes}")
        if fold.decode is not None:
            value = _called("decode", fold.decode, record.value)
        elif isinstance(value, BadEventError):
            if self._only and self._is_skipped(value):
                return None
            value = self._rest_of(value)  # functions read the whole event, so this raises
        if self._only and self._is_skipped(value):
            return None
        if fold.source_filter is not None and not _called("source_filter", _truth_of(fold.source_filter), value):
            return None
        reads_any = callable(fold.group_key) and (callable(fold.changed) or fold.keeps_events)
        if type(value) is not dict and not reads_any:
            raise BadEventError("not-an-object", f"decode returned {type(value).__name__}, not a dict")
        return self._read_event(record, value, self._group(record, value))

    def _group(self, record: SourceRecord, value: Any) -> bytes:
        if not callable(self._fold.group_key):
            return self._member(record, value)
        member = member_of((_plain(_called("group_key", self._fold.group_key, value)),), ("group_key",))
        if len(member) > self._limits.key_bytes + 1:
            raise BadEventError("too-large", f"the group key has more than {self._limits.key_bytes} bytes")
        return member

    def _member(self, record: SourceRecord, value: dict[str, Any]) -> bytes:
        try:
            return super()._member(record, value)
        except UnicodeEncodeError as error:
            raise BadEventError("user-error", f"{self._labels[0]}: text that UTF-8 does not have: {error.object!r}") from error

    def _names(self, value: Any) -> dict[str, Any]:
        own = self._fold.changed
        if callable(own):
            return self._names_of(_called("changed", lambda event: _listed(own(event)), value))
        return self._names_of(_called(repr(own), _listed, at_path(value, self._changed_path)))

    def _check_names(self, names: dict[str, Any]) -> None:
        for name in names:
            if type(name) is not str:
                raise BadEventError("user-error", f"the name {name!r} is of type {type(name).__name__}, not str")
            try:
                name.encode()
            except UnicodeEncodeError as error:
                raise BadEventError("user-error", f"the name {name!r} is text that UTF-8 does not have") from error
        super()._check_names(names)

    def _kept(self, names: dict[str, Any]) -> dict[str, Any]:
        """Return a copy via JSON, so that encoding it cannot fail later, and the user's code cannot change it."""
        try:
            raw = encode(names)
            for value in names.values():
                check_json_depth(raw, value)
        except (orjson.JSONEncodeError, TooDeepError) as error:
            fault = next(filter(None, (_fault_of(name, value) for name, value in names.items())), str(error))
            raise BadEventError("user-error", fault) from error
        if len(raw) > self._limits.value_bytes:
            raise BadEventError("too-large", f"names and values have {len(raw)} bytes, the limit is {self._limits.value_bytes}")
        kept: dict[str, Any] = decode(raw)
        return kept


def _fault_of(name: str, value: Any) -> str | None:
    try:
        check_json_depth(encode(value), value)
    except (orjson.JSONEncodeError, TooDeepError) as error:
        return f"the value of {name!r} cannot be kept: {error}"
    return None


def _called(name: str, function: Callable[[Any], T], argument: Any) -> T:
    try:
        return function(argument)
    except Exception as error:  # the code is the user's, so any exception is possible
        raise BadEventError("user-error", f"{name}: {_text_of(error)}") from error


def _truth_of(function: Callable[[Any], Any]) -> Callable[[Any], bool]:
    """Wrap a function so that its result is converted to bool; the conversion may raise, for example for a numpy array."""
    return lambda event: bool(function(event))


def _listed(changed: Any) -> Any:
    """Copy the result of the user's function ``changed``, which that function may reuse and modify.

    Errors that the user's objects raise are not caught.
    """
    if type(changed) is dict and _TEXT.issuperset(map(type, changed)):
        return changed.copy()  # the function may reuse and modify it
    if isinstance(changed, Mapping):
        return {_plain(name): value for name, value in changed.items()}
    if isinstance(changed, str) or not isinstance(changed, Iterable):
        return _plain(changed)
    return [_plain(name) for name in changed]


def _plain(value: Any) -> Any:
    """Convert an instance of a subclass of str, such as a member of an enumeration, to str; return other values unchanged."""
    return str.__str__(value) if isinstance(value, str) else value


def _text_of(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # __str__ of the user's exception may raise
        text = ""
    return _printable(f"{type(error).__name__}: {text[:DETAIL_CHARACTERS]}".removesuffix(": "))


def _printable(text: str) -> str:
    """Replace characters that UTF-8 cannot encode by backslash escapes, so that the text can be a header."""
    return text.encode("utf-8", "backslashreplace").decode()
