"""Parsing of folded records into changes (pure).

The topic may contain records that this project did not produce. Such a record is returned as :class:`RejectedRecord` instead of
raising an error, so that it does not stop the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from streams_app.codec import TEXT_TAG, canonical_bytes, member_of
from streams_app.errors import BadEventError
from streams_app.exact_json import decode
from streams_app.read_store.core.merge import Cell, CellChange, Value
from streams_app.read_store.core.values import carried_value

MAX_VERSION: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ExpectedRecords:
    """Properties of the folded records that an output topic should contain.

    Attributes:
        fold: Name of the fold.
        changed: Field of the records that contains the changed names.
        group_fields: Fields of the records that contain the group.
        carries_values: Whether the field ``changed`` must be an object of names and values. If not, an array of names is also
            accepted.
    """

    fold: str
    changed: str
    group_fields: tuple[str, ...]
    carries_values: bool


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """Result of :func:`parse` for a record that is not a folded record of the expected fold.

    Attributes:
        why: The reason, without any part of the payload.
    """

    why: str


def parse(key: bytes | None, value: bytes | None, expected: ExpectedRecords) -> list[CellChange] | RejectedRecord:
    """Parse a record into the changes that it announces.

    Args:
        key: Record key: the canonical bytes of the group key. They are the same for the groups ``1`` and ``"1"``, so the group is
            read from the value.
        value: JSON, see docs/reference/record.md.

    Returns:
        A change for each name, in the order of the record; it has a value if the record carries values. A tombstone, by which the
        log of a compacted topic loses a key, announces no change. If the record is not a folded record of the expected fold, the
        reason.
    """
    if key is not None and value is None:
        return []
    if key is None or not value:
        return RejectedRecord("no key" if key is None else "empty value")
    record = _object(value)
    if isinstance(record, RejectedRecord):
        return record
    version = _version(record.get("fold"), expected.fold)
    if isinstance(version, RejectedRecord):
        return version
    return _changes(record, version, expected)


def _changes(record: Mapping[str, Any], version: int, expected: ExpectedRecords) -> list[CellChange] | RejectedRecord:
    group_key = _group_key(record, expected)
    if isinstance(group_key, RejectedRecord):
        return group_key
    try:
        names = _names(record.get(expected.changed), expected)
    except orjson.JSONEncodeError:
        return RejectedRecord("a value is nested too deeply")
    if isinstance(names, RejectedRecord):
        return names
    return [CellChange(Cell(expected.fold, group_key, name), version, carried) for name, carried in names.items()]


def _object(value: bytes) -> dict[str, Any] | RejectedRecord:
    try:
        record = decode(value)
    except orjson.JSONDecodeError:
        return RejectedRecord("not JSON")
    return record if type(record) is dict else RejectedRecord("not an object")


def _group_key(record: Mapping[str, Any], expected: ExpectedRecords) -> str | RejectedRecord:
    try:
        return group_column(member_of(tuple(record.get(field) for field in expected.group_fields)))
    except BadEventError:
        return RejectedRecord(f"no usable group field ({', '.join(expected.group_fields)})")


def group_column(member: bytes) -> str:
    """Return the value of the column ``group_key`` for a group; it is unique for each group.

    A text is unchanged, unless it is valid JSON: then it becomes a JSON string in quotes. Any other group becomes canonical JSON.

    Args:
        member: Bytes that identify the group, as :func:`streams_app.codec.member_of` returns them.
    """
    text = group_text(canonical_bytes(member))
    return orjson.dumps(text).decode() if member[:1] == TEXT_TAG and _is_json(text) else text


def group_of_column(column: str) -> Any:
    """Convert a value of the column ``group_key`` to a query parameter: a text or a number; other groups become JSON text."""
    try:
        value = orjson.loads(column)
    except orjson.JSONDecodeError:
        return column
    return value if type(value) in (str, int, float) else column


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def group_text(key: bytes) -> str:
    """Decode the canonical bytes of a group key; bytes that are not UTF-8 are escaped."""
    return key.decode("utf-8", errors="backslashreplace")


def _version(fold: Any, name: str) -> int | RejectedRecord:
    if type(fold) is not dict:
        return RejectedRecord("no field 'fold'")
    if fold.get("name") != name:
        return RejectedRecord("of another fold")
    version = fold.get("version")
    if type(version) is not int or not 0 <= version <= MAX_VERSION:
        return RejectedRecord("no usable fold.version")
    return version


def _names(changed: Any, expected: ExpectedRecords) -> dict[str, Value] | RejectedRecord:
    if type(changed) is dict:
        return {name: carried_value(carried) for name, carried in changed.items()}
    if type(changed) is not list or not all(type(name) is str for name in changed):
        return RejectedRecord(f"no usable field '{expected.changed}'")
    if expected.carries_values:
        return RejectedRecord("names without values; the source is 'carried'")
    return dict.fromkeys(changed)
