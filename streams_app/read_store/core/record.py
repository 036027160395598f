"""Folded records as the read store sees them (pure): bytes to changes.

The topic may hold what this project did not produce. Such a record is described, not raised: it must not stop the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from streams_app.codec import TEXT_MARK, canonical_bytes, member_of
from streams_app.errors import BadEventError
from streams_app.read_store.core.merge import Cell, CellChange, Value
from streams_app.read_store.core.values import value_of

MAX_VERSION: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Expected:
    """What a topic should hold.

    Attributes:
        fold: Name of the fold.
        changed: Its changed field.
        group_fields: Its group fields, as they stand in its records.
        carries_values: The changed field must be an object name → value; otherwise an array of names will do, too.
    """

    fold: str
    changed: str
    group_fields: tuple[str, ...]
    carries_values: bool


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that is not a folded record of this fold.

    Attributes:
        why: The reason in words, without anything of the payload.
    """

    why: str


def parse(key: bytes | None, value: bytes | None, expected: Expected) -> list[CellChange] | Rejected:
    """The changes one record announces.

    Args:
        key: Canonical bytes of the group key: the groups ``1`` and ``"1"`` have the same, so the value says which it is.
        value: JSON, see the folded record in docs/semantics.md.
        expected: What the topic should hold.

    Returns:
        One change a name, in the order of the record; values only where the record carries them.
    """
    if key is None or not value:
        return Rejected("no key" if key is None else "empty value")
    record = _object(value)
    if isinstance(record, Rejected):
        return record
    version = _version(record.get("fold"), expected.fold)
    if isinstance(version, Rejected):
        return version
    return _changes(record, version, expected)


def _changes(record: Mapping[str, Any], version: int, expected: Expected) -> list[CellChange] | Rejected:
    group_key = _group_key(record, expected)
    if isinstance(group_key, Rejected):
        return group_key
    try:
        names = _names(record.get(expected.changed), expected)
    except orjson.JSONEncodeError:
        return Rejected("a value is nested too deeply")
    if isinstance(names, Rejected):
        return names
    return [CellChange(Cell(expected.fold, group_key, name), version, carried) for name, carried in names.items()]


def _object(value: bytes) -> dict[str, Any] | Rejected:
    try:
        record = orjson.loads(value)
    except orjson.JSONDecodeError:
        return Rejected("not JSON")
    return record if type(record) is dict else Rejected("not an object")


def _group_key(record: Mapping[str, Any], expected: Expected) -> str | Rejected:
    try:
        return group_column(member_of(tuple(record.get(field) for field in expected.group_fields)))
    except BadEventError:
        return Rejected(f"no usable group field ({', '.join(expected.group_fields)})")


def group_column(member: bytes) -> str:
    """The ``group_key`` column of a group: no two groups have the same.

    Text stays as it is, unless it would read as JSON: then it has the quotes of a JSON string. Everything else is canonical JSON.

    Args:
        member: Member of the group, see :func:`streams_app.codec.member_of`.
    """
    text = group_text(canonical_bytes(member))
    return orjson.dumps(text).decode() if member[:1] == TEXT_MARK and _is_json(text) else text


def group_of_column(column: str) -> Any:
    """What a group is for somebody who asks a database for it: a text or a number; anything else is the text of its JSON."""
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
    """Canonical bytes of a group key as text; bytes that are not UTF-8 are escaped."""
    return key.decode("utf-8", errors="backslashreplace")


def _version(fold: Any, name: str) -> int | Rejected:
    if type(fold) is not dict:
        return Rejected("no field 'fold'")
    if fold.get("name") != name:
        return Rejected("of another fold")
    version = fold.get("version")
    if type(version) is not int or not 0 <= version <= MAX_VERSION:
        return Rejected("no usable fold.version")
    return version


def _names(changed: Any, expected: Expected) -> dict[str, Value] | Rejected:
    if type(changed) is dict:
        return {name: value_of(carried) for name, carried in changed.items()}
    if type(changed) is not list or not all(type(name) is str for name in changed):
        return Rejected(f"no usable field '{expected.changed}'")
    if expected.carries_values:
        return Rejected("names without values; the source is 'carried'")
    return dict.fromkeys(changed)
