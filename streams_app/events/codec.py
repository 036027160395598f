"""Encodes payloads as the value and key of an event, and decodes them (pure).

The fields of a payload are at the top level of the value, beside ``before`` (the previous payload) and ``metadata``. A published
event can therefore be folded, and JSON of other producers can be decoded as an event. msgspec converts no type silently: ``"1"`` is
not an integer. Pydantic converts types as the model specifies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final, Generic, TypeAlias
from uuid import UUID

import msgspec
from pydantic import BaseModel, ValidationError

from streams_app.codec import canonical_bytes, member_of
from streams_app.errors import BadEventError, text_of
from streams_app.events.declaration import Event, M, T
from streams_app.events.folded import FoldInfo
from streams_app.events.headers import FOLD_ID, ID, TYPE, Headers, header, header_bytes
from streams_app.events.payloads import has_hooks, is_pydantic
from streams_app.settings import Limits

_NOTHING: Final = msgspec.Raw(b"null")


class _MetadataFields(msgspec.Struct):
    """The fields ``before`` and ``metadata`` of a value, as raw JSON."""

    before: msgspec.Raw = _NOTHING
    metadata: msgspec.Raw = _NOTHING


class _FoldedFields(msgspec.Struct):
    fold: FoldInfo


_beside: Final = msgspec.json.Decoder(_MetadataFields)
_folded: Final = msgspec.json.Decoder(_FoldedFields)


Parts: TypeAlias = tuple[T, T | None, M | None, FoldInfo | None]


class DecodedValue(msgspec.Struct, Generic[T, M], frozen=True):
    """The decoded value of an event: its payload, the previous payload, the metadata, and the field ``fold`` of a folded record."""

    data: T
    before: T | None = None
    metadata: M | None = None
    fold: FoldInfo | None = None


@dataclass(frozen=True, slots=True)
class Decoder(Generic[T, M]):
    """Decodes the values of all events with one declaration, or of the records of one fold.

    Attributes:
        metadata: Type of the metadata; None: metadata is ignored.
        decode: The user's function that decodes values, see :class:`Event`; None: values are JSON.
        is_list: Whether the data is the list of events of a folded record, see ``records_of(fold, list[T])``.
    """

    payload: type[T]
    limits: Limits
    metadata: type[M] | None = None
    decode: Callable[[bytes], Any] | None = None
    is_folded: bool = False
    is_list: bool = False
    _read: Callable[[bytes], T] = field(init=False)
    _read_beside: Callable[[bytes], Any] = field(init=False)
    _read_metadata: Callable[[bytes], M] | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_read", _reader(self.payload))
        object.__setattr__(self, "_read_beside", (_folded if self.is_folded else _beside).decode)
        object.__setattr__(self, "_read_metadata", None if self.metadata is None else _reader(self.metadata))

    def __call__(self, key: bytes | None, value: bytes | None) -> DecodedValue[T, M]:
        """Decode the value of one event; for the errors, see :meth:`parts`."""
        return DecodedValue(*self.parts(key, value))

    def parts(self, key: bytes | None, value: bytes | None, *, names_type: bool = True) -> Parts[T, M]:
        """Decode one event, and return the attributes of :class:`DecodedValue` as a tuple: data, before, metadata and fold.

        Args:
            names_type: Whether the headers name the event, see :func:`names`. If they do not, another producer has sent the event;
                its ``before`` may have another meaning and is ignored.

        Raises:
            BadEventError: ``too-large``: key or value exceeds its limit. ``not-valid``: the value does not fit its type, or is
                empty.
        """
        value = self.require_size(key, value)
        if self.decode is not None:
            return self._decoded_otherwise(self.decode, value, names_type=names_type)
        try:
            # Without a call of _checked(), because this code runs for each event.
            data, beside = self._read(value), self._read_beside(value)
        except BaseException as error:  # as in _checked()
            raise _not_valid("$", error) from error
        if self.is_folded:
            found: Any = data
            return found.events if self.is_list else data, None, None, beside.fold
        if beside.before is _NOTHING and beside.metadata is _NOTHING:
            return data, None, None, None
        is_empty = not names_type or _is_null(beside.before)
        before = None if is_empty else _checked("$.before", self._read, bytes(beside.before))
        if self._read_metadata is None or _is_null(beside.metadata):
            return data, before, None, None
        return data, before, _checked("$.metadata", self._read_metadata, bytes(beside.metadata)), None

    def require_size(self, key: bytes | None, value: bytes | None) -> bytes:
        """Return the value after checking that it is not empty, and that key and value are within the limits."""
        limits = self.limits
        if not value or len(value) > limits.value_bytes or (key is not None and len(key) > limits.key_bytes):
            check_sizes(key, value, limits)
            raise BadEventError("not-valid", "the value is empty")
        return value

    def _decoded_otherwise(self, decode: Callable[[bytes], Any], value: bytes, *, names_type: bool) -> Parts[T, M]:
        found = _checked("decode=", decode, value)
        if not isinstance(found, Mapping):
            return _checked("$", _converter(self.payload), found), None, None, None
        before, metadata = found.get("before") if names_type else None, found.get("metadata")
        return (
            _checked("$", _converter(self.payload), found),
            None if before is None else _checked("$.before", _converter(self.payload), before),
            None if metadata is None or self.metadata is None else _checked("$.metadata", _converter(self.metadata), metadata),
            None,
        )


def decoder_of(event: Event[T, M], limits: Limits) -> Decoder[T, M]:
    """Return the decoder for the values of a declared event."""
    return Decoder(event.payload, limits, event.metadata, event.decode)


def runs_users_code(decoder: Decoder[Any, Any]) -> bool:
    """Return whether decoding calls functions of users: ``decode=``, or hooks of the types of payload and metadata."""
    return decoder.decode is not None or has_hooks(decoder.payload) or has_hooks(decoder.metadata)


def encode(event: Event[T, M], data: T, before: T | None, metadata: M | None) -> tuple[bytes | None, bytes]:
    """Return the record key and the value of an event to publish; the key is None if the event has no ``keyed_by``.

    Raises:
        BadEventError: The event cannot be represented as JSON, or the field that ``keyed_by`` names is not a scalar (reason
            ``not-valid``).
    """
    try:
        value = _json(data)
        for name, part in (("before", before), ("metadata", metadata)):
            if part is not None:
                separator = b"" if value == b"{}" else b","
                value = b'%b%b"%b":%b}' % (value[:-1], separator, name.encode(), _json(part))
        return _key(event, value), value
    except BadEventError as error:
        raise BadEventError("not-valid", f"keyed_by: {error.detail}") from error
    except Exception as error:  # hooks of the user's types run here, and may raise anything
        raise BadEventError("not-valid", f"{event.key} cannot be written as JSON: {text_of(error)}") from error


def native_of(data: Any) -> Any:
    """Return a payload as a dict whose keys are the JSON names of its fields; nested objects also become dicts.

    Times, decimals, UUIDs and bytes are not converted to text.
    """
    if isinstance(data, BaseModel):
        return data.model_dump(by_alias=True)
    return msgspec.to_builtins(data, builtin_types=_NATIVE)


_NATIVE: Final = (bytes, bytearray, datetime, date, time, Decimal, UUID)


def check_sizes(key: bytes | None, value: bytes | None, limits: Limits) -> None:
    """Check that key and value are within the limits."""
    if value is not None and len(value) > limits.value_bytes:
        raise BadEventError("too-large", f"the value has {len(value)} bytes, at most {limits.value_bytes}")
    if key is not None and len(key) > limits.key_bytes:
        raise BadEventError("too-large", f"the key has {len(key)} bytes, at most {limits.key_bytes}")


def check_headers(headers: Headers, limits: Limits) -> None:
    """Check that the headers of an event have at most as many bytes as a value may have."""
    if (size := header_bytes(headers)) > limits.value_bytes:
        raise BadEventError("too-large", f"the headers have {size} bytes, at most {limits.value_bytes}")


def event_id(headers: Headers, limits: Limits, topic: str, partition: int, offset: int) -> str:
    """Return the id of an event: the fold id of a folded record, otherwise ``ce_id``, otherwise ``TOPIC:PARTITION:OFFSET``.

    Raises:
        BadEventError: ``not-valid``: the id is not UTF-8; with replaced bytes, it might be the id of another event. ``too-large``:
            the id exceeds the limit of keys.
    """
    own = b""
    for name, value in headers:
        if name == FOLD_ID and value:
            return _id(name, value, limits)
        if name == ID and not own:
            own = value
    return _id(ID, own, limits) if own else f"{topic}:{partition}:{offset}"


def names(event: Event[Any, Any], headers: Headers) -> bool | None:
    """Return whether the headers of a record name this event as its type; None if they name no type, which counts as this event."""
    kind = header(headers, TYPE)
    return None if kind is None else kind == event.key


def _id(name: str, value: bytes, limits: Limits) -> str:
    if len(value) > limits.key_bytes:
        raise BadEventError("too-large", f"{name} has {len(value)} bytes, at most {limits.key_bytes}")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise BadEventError("not-valid", f"{name} is not UTF-8: {error}") from error


def _json(part: Any) -> bytes:
    return part.model_dump_json(by_alias=True).encode() if isinstance(part, BaseModel) else msgspec.json.encode(part)


def _key(event: Event[Any, Any], value: bytes) -> bytes | None:
    if event.keyed_by is None:
        return None
    return canonical_bytes(member_of((msgspec.json.decode(value)[event.keyed_by],), (event.keyed_by,)))


def _is_null(raw: msgspec.Raw) -> bool:
    return bytes(raw) == b"null"


def _reader(kind: Any) -> Callable[[bytes], Any]:
    return kind.model_validate_json if is_pydantic(kind) else msgspec.json.Decoder(kind).decode


def _converter(kind: Any) -> Callable[[Any], Any]:
    """Return a function that converts the result of ``decode=`` to a type; an object of that type stays unchanged."""
    if is_pydantic(kind):
        return kind.model_validate
    return lambda found: msgspec.convert(found, kind)


def _checked(path: str, read: Callable[[Any], Any], value: Any) -> Any:
    """Return ``read(value)``. Convert any exception to an error that names the path of the part that is decoded."""
    try:
        return read(value)
    except BaseException as error:  # also a panic of a library in Rust, or sys.exit() in decode=, which must not end the worker
        raise _not_valid(path, error) from error


def _not_valid(path: str, error: BaseException) -> BadEventError:
    """Convert an exception that decoding a part of an event raised; the detail of the error names the path of the part."""
    if isinstance(error, msgspec.MsgspecError):
        text = str(error)
        if isinstance(error, msgspec.ValidationError) and "`$" not in text:
            text += " - at `$`"  # msgspec names no path if the whole value has another type
        return BadEventError("not-valid", text.replace("`$", f"`{path}"))
    if isinstance(error, ValidationError):
        fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
        part_path = ".".join((path, *map(str, fault["loc"])))
        return BadEventError("not-valid", f"{fault['msg']} - at `{part_path}`")
    if isinstance(error, RecursionError):
        return BadEventError("not-valid", f"it is nested too deeply - at `{path}`")
    return BadEventError("not-valid", f"{text_of(error)} - at `{path}`")  # raised by a function or a hook of the user
