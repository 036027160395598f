"""The two shapes of documents in OpenSearch, and the requests for them (pure).

In the shape ``cells``, there is a document for each (fold, group_key, name). In the shape ``groups``, there is a document for each
(fold, group_key), with a field for each name. A script that is stored on the server, see ``painless/``, reads a document, applies
the version guard, and writes the document, all in one atomic step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files
from math import isfinite
from types import MappingProxyType
from typing import Any, Final

import orjson

from streams_app.read_store.core.merge import CarriedDecimal, CarriedJson, Cell, CellChange, JsonText, Value
from streams_app.read_store.core.store import Repair
from streams_app.read_store.core.values import integer_fault, json_text, surrogate_fault

MAX_ID_BYTES: Final = 512
MAX_KEY_BYTES: Final = 32_766
"""Maximum length of a value of the type ``keyword``, in bytes."""

MAX_DEPTH: Final = 300
"""Maximum nesting depth that an index accepts; values are nested less deeply than 255."""

_MAX_DIGITS: Final = 300

# A disabled object is stored without being parsed, so documents cannot conflict about its type.
_KEPT: Final = {"type": "object", "enabled": False}
_KEYWORD: Final = {"type": "keyword"}
_LONG: Final = {"type": "long"}
_DOUBLE: Final = {"type": "double", "ignore_malformed": True}
_TEXT: Final = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}

_CELLS: Final = {
    "fold": _KEYWORD, "group_key": _KEYWORD, "name": _KEYWORD, "value": _KEPT, "number": _DOUBLE, "text": _TEXT,
    "version": _LONG, "updated_ms": _LONG, "counts": _KEPT,
}  # fmt: skip
_GROUPS: Final = {
    "fold": _KEYWORD, "group_key": _KEYWORD, "other": _KEPT, "versions": _KEPT, "guarded": _LONG, "updated_ms": _LONG,
    "counts": _KEPT,
}  # fmt: skip

# The first value of a field determines its type. Each of these types accepts every later value; a value that it cannot index is
# missing from the index, but not from the document.
_BY_VALUE: Final = [
    {f"streams_app_{kind}": {"match_mapping_type": kind, "mapping": mapping}}
    for kind, mapping in (("long", _DOUBLE), ("double", _DOUBLE), ("boolean", _TEXT), ("string", _TEXT))
]

CHECKPOINTS: Final = {
    "dynamic": False, "properties": {"topic": _KEYWORD, "partition": _LONG, "next_offset": _LONG, "updated_ms": _LONG},
}  # fmt: skip


VERSION_GUARD: Final = "known != null && (version < known || (version == known && !isSame))"
"""The version guard in Painless: a condition under which a change is stale, so that it is not written. It replaces ``{isStale}``
in both scripts.

The name of a script is derived from its text, so any change of the text, even of a comment, needs `read-store init`.
"""


@dataclass(frozen=True, slots=True)
class DocumentRequest:
    """An update request for one document.

    Attributes:
        body: The two lines of this request in a bulk request.
        more: Additional parameters of the script, for a repair; empty for other writes.
    """

    id: str
    changes: tuple[CellChange, ...]
    body: bytes
    more: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """Layout of the documents of a store: one for each cell, or one for each group. Builds the requests that write the documents.

    Attributes:
        name: The setting ``shape``: ``cells`` or ``groups``.
        columns: For ``groups``: the field of each changed name. If empty, each changed name has a field of the same name, unless a
            field cannot have this name.
    """

    name: str
    columns: Mapping[str, str]

    @property
    def mapping(self) -> dict[str, Any]:
        """The mapping of the index: its fields and their types."""
        meta = {"streams_app": {"shape": self.name}}
        if self.name == "cells":
            return {"_meta": meta, "dynamic": False, "properties": _CELLS}
        return {
            "_meta": meta, "dynamic": True, "date_detection": False, "numeric_detection": False,
            "dynamic_templates": _BY_VALUE, "properties": _GROUPS,
        }  # fmt: skip

    @property
    def script(self) -> str:
        """Source of the Painless script that writes documents of this shape."""
        return _script(self.name)

    @property
    def script_name(self) -> str:
        """Name of the stored script. It contains a hash of the text, so that two releases do not overwrite each other's scripts."""
        return _script_name(self.name)

    def items(self, changes: Sequence[CellChange], now_ms: int) -> list[DocumentRequest]:
        """Build the requests of a batch, one for each document."""
        if self.name == "cells":
            return [self._cell(change, now_ms) for change in changes]
        groups: dict[tuple[str, str], list[CellChange]] = {}
        for change in changes:
            groups.setdefault((change.cell.fold, change.cell.group_key), []).append(change)
        return [self._group(each, now_ms) for each in groups.values()]

    def without_fields(self, items: Sequence[DocumentRequest], now_ms: int) -> list[DocumentRequest]:
        """Split requests into one for each change. These requests store the value in the object ``other`` instead of in a field.

        The object is not indexed, so it accepts values that the server rejects in a field. The list is empty for the shape
        ``cells``, in which names have no fields.
        """
        if self.name == "cells":
            return []
        return [self._group([change], now_ms, item.more, has_no_fields=True) for item in items for change in item.changes]

    def probe(self) -> DocumentRequest:
        """Build an update without effect, which tests whether the server accepts writes. Its document is never created."""
        return self._item("probe", (), {"names": {}})

    def rejection(self, change: CellChange) -> str | None:
        """Return the reason why no document can hold a change, or None if one can."""
        for text in change.cell:
            if fault := surrogate_fault(text):
                return f"group or name {fault}"
            if (size := len(text.encode())) > MAX_KEY_BYTES:
                return f"group or name has {size} bytes, {MAX_KEY_BYTES} are possible"
        if self.columns and change.cell.name not in self.columns:
            return "the name has no column"
        value = change.value
        if isinstance(value, (float, Decimal)) and not isfinite(float(value)):
            return "the value is not a finite number"
        if isinstance(value, CarriedDecimal | CarriedJson):
            return "the value has a decimal number with more digits than a double keeps"
        fault = surrogate_fault(value) if isinstance(value, str) else integer_fault(value)
        return f"the value {fault}" if fault else None

    def repairs(self, repairs: Sequence[Repair], now_ms: int) -> list[DocumentRequest]:
        """Build the requests of a repair, one for each document."""
        if self.name == "cells":
            return [self._cell(change, now_ms, {"found": found}) for change, found in repairs]
        groups: dict[str, list[Repair]] = {}
        for repair in repairs:
            groups.setdefault(self.document(repair.change.cell), []).append(repair)
        return [
            self._group(
                [repair.change for repair in each], now_ms, {"found": {repair.change.cell.name: repair.found for repair in each}}
            )
            for each in groups.values()
        ]

    def document(self, cell: Cell) -> str:
        """Return the id of the document that contains a cell."""
        return document_id(cell if self.name == "cells" else cell[:2])

    def field(self, name: str) -> str | None:
        """Return the document field that holds the value of a changed name, or None if the name cannot have a field."""
        return self.columns.get(name) or (name if is_field(name) else None)

    def _cell(self, change: CellChange, now_ms: int, more: Mapping[str, Any] = MappingProxyType({})) -> DocumentRequest:
        cell, value = change.cell, change.value
        text = _json(value)
        is_number = isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)
        is_text = isinstance(value, (str, bytes, bool)) and not isinstance(value, JsonText)
        given = {
            "fold": cell.fold, "group_key": cell.group_key, "name": cell.name, "value": text,
            "number": text if is_number else None, "text": text if is_text else None, "version": change.version,
            "now_ms": now_ms,
        }  # fmt: skip
        return self._item(self.document(cell), (change,), given, more)

    def _group(
        self,
        changes: Sequence[CellChange],
        now_ms: int,
        more: Mapping[str, Any] = MappingProxyType({}),
        *,
        has_no_fields: bool = False,
    ) -> DocumentRequest:
        fold, group_key, _ = changes[0].cell
        names = {}
        for change in changes:
            name, value = change.cell.name, change.value
            field = self.field(name)
            is_in_field = field is not None and not has_no_fields and not isinstance(value, JsonText)
            names[name] = [change.version, _json(value), field, is_in_field]
        given = {"fold": fold, "group_key": group_key, "names": names, "now_ms": now_ms}
        return self._item(self.document(changes[0].cell), tuple(changes), given, more)

    def _item(
        self,
        document: str,
        changes: tuple[CellChange, ...],
        given: Mapping[str, Any],
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> DocumentRequest:
        update = {"update": {"_id": document, "retry_on_conflict": 5}}
        script = {"id": self.script_name, "params": {**given, **more}}
        body = {"scripted_upsert": True, "upsert": {}, "script": script, "_source": ["counts"]}
        return DocumentRequest(document, changes, orjson.dumps(update) + b"\n" + orjson.dumps(body) + b"\n", more)


def document_id(parts: Sequence[str | int]) -> str:
    """Return the document id for a key, given as its parts, such as fold and group key.

    The id is the JSON of the list of parts, or a hash of this JSON if it is too long for an id.
    """
    text = orjson.dumps(list(parts))
    return text.decode() if len(text) <= MAX_ID_BYTES else f"sha256:{hashlib.sha256(text).hexdigest()}"


def is_field(name: str) -> bool:
    """Return whether a name can be a field of a document: a dot would make it two fields, and some names are reserved."""
    return name.strip() != "" and "." not in name and not name.startswith("_") and name not in _GROUPS


@cache
def _script(shape: str) -> str:
    template = files(__package__).joinpath("painless", f"{shape}.painless").read_text("utf-8")
    return template.replace("{isStale}", VERSION_GUARD)


@cache
def _script_name(shape: str) -> str:
    return f"streams-app-{shape}-{hashlib.sha256(_script(shape).encode()).hexdigest()[:12]}"


def value_json(value: Value) -> bytes:
    """Convert a value to JSON. A decimal number with a fraction becomes the nearest double, as it would on the server."""
    if isinstance(value, Decimal):
        is_whole = value == value.to_integral_value() and value.adjusted() < _MAX_DIGITS
        value = int(value) if is_whole else float(value)
    return (json_text(value) or "null").encode()


def _json(value: Value) -> orjson.Fragment:
    return orjson.Fragment(value_json(value))
