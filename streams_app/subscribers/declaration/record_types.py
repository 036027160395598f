"""Compares the JSON schema of a fold's records with the payload type of a subscriber (pure); reads no records.

A mismatch is reported only if no record can have the required type. Nothing is reported if some records may have it, because their
types depend on the events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from pydantic import ValidationError

from streams_app.events.declaration import Event
from streams_app.events.folded import FoldInfo
from streams_app.events.payloads import is_pydantic, schema_of
from streams_app.fold import RECORD_KEY, Fold

Schema = Mapping[str, Any]

SCALARS: Final = ("string", "integer", "number", "boolean")
TEXT: Final[Schema] = {"type": "string"}
ANYTHING: Final[Schema] = {}

MAX_DEPTH: Final = 20
"""Depth of nesting at which a comparison ends, because a type may contain itself."""

_TYPES: Final = {
    str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array", dict: "object",
}  # fmt: skip
_SAMPLES: Final[Mapping[str, tuple[Any, ...]]] = {
    "string": ("a", "1", "1.5", "true"), "integer": (1, 0), "number": (1.5,), "boolean": (True,), "null": (None,),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Clash:
    """A field of a payload that no record can fill, because the types do not match.

    Attributes:
        field: Name of the field in JSON, or the path to the mismatch, such as ``metrics[]``.
        made: Type of the field in records.
        wanted: Type of the field in the payload.
    """

    field: str
    made: str
    wanted: str


def record_schemas(fold: Fold, event: Event[Any, Any] | None = None) -> dict[str, Schema]:
    """Return the JSON schema of each field of a fold's records.

    Args:
        event: The event that the fold reads. It determines the types of the group fields and, with ``keep = "last"``, of the values
            in the changed field. None: the event is unknown, and so are these types.
    """
    declared = _DeclaredEvent(event) if event is not None and fold.format == "json" and not fold.is_by_functions else None
    groups: dict[str, Schema] = {}
    for field in fold.group_fields:
        groups[field] = TEXT if fold.group_key == RECORD_KEY else {"type": (declared and declared.scalars(field)) or SCALARS}
    changed: Schema = {"type": "array", "items": TEXT}
    if fold.keeps_events:
        changed = {"type": "array", "items": ANYTHING}
    elif fold.aggregates is not None:
        changed = {"type": "object", "additionalProperties": ANYTHING}
    elif fold.keep == "last":
        changed = {"type": "object", "additionalProperties": declared.last_values(fold.changed_field) if declared else ANYTHING}
    info, _ = schema_of(FoldInfo)
    return {**groups, fold.changed_field: changed, "fold": info}


def clashes(fold: Fold, payload: Any, event: Event[Any, Any] | None = None) -> Iterator[Clash]:
    """Yield the fields of a payload that no record of a fold can fill."""
    schema, definitions = schema_of(payload)
    compared = _SchemaComparison(definitions)
    for field, made in record_schemas(fold, event).items():
        if (wanted := schema.get("properties", {}).get(field)) is None:
            continue
        clash = compared.clash(field, made, wanted)
        if clash is not None and not (is_pydantic(payload) and _is_taken(payload, field, made)):
            yield clash


def required_names(fold: Fold, payload: Any) -> list[str]:
    """Return the changed names that a subscriber requires, sorted: it would reject a folded record that lacks one of them.

    Args:
        fold: The fold, whose ``changed_field`` is the field of its records that contains the changed names.
        payload: Type of the subscriber's payload. If it declares this field as an object, the required fields of the object are
            the result.
    """
    schema, definitions = schema_of(payload)
    wanted = schema.get("properties", {}).get(fold.changed_field)
    if fold.kept in ("names", "events") or wanted is None:
        return []
    variants = list(_variants(wanted, definitions))
    required = [set(one.get("required", ())) for one in variants if "object" in _types(one)]
    return sorted(set.intersection(*required)) if required else []


class _DeclaredEvent:
    """Derives the types of the fields of folded records from the payload type of the folded events."""

    def __init__(self, event: Event[Any, Any]) -> None:
        self._fields: Schema = {}
        self._definitions: Schema = {}
        # For a pydantic model, the JSON that it accepts or writes is unknown.
        if event.decode is None and event.format == "json" and not is_pydantic(event.payload):
            schema, self._definitions = schema_of(event.payload)
            self._fields = schema.get("properties", {})

    def scalars(self, field: str) -> tuple[str, ...]:
        """Return the possible JSON types of a group field; empty if they are unknown."""
        found = {kind for one in self._variants(field) for kind in _types(one)}
        return tuple(kind for kind in SCALARS if kind in found)

    def last_values(self, field: str) -> Schema:
        """Return the schema of the values in the changed field of a record, for a fold with ``keep = "last"``."""
        kinds: set[str] = set()
        for one in self._variants(field):
            if "object" in _types(one):
                more = one.get("additionalProperties", ANYTHING)
                values = [*one.get("properties", {}).values(), *([more] if more is not False else [])]
                kinds |= {kind for value in values for inner in _variants(value, self._definitions) for kind in _types(inner)}
            if {"array", "string"} & _types(one):
                kinds.add("null")  # names without values
        return {"type": tuple(sorted(kinds))} if kinds else ANYTHING

    def _variants(self, field: str) -> list[Schema]:
        return list(_variants(self._fields[field], self._definitions)) if field in self._fields else []


class _SchemaComparison:
    """Compares the JSON schema of folded records with that of a subscriber's payload."""

    def __init__(self, definitions: Schema) -> None:
        self._definitions = definitions

    def clash(self, path: str, made: Schema, wanted: Any, depth: int = 0) -> Clash | None:
        """Return the mismatch if no value of the schema ``made`` fits the schema ``wanted``; None if some value may fit.

        Args:
            path: Name of the field, or path to the compared schemas within it.
            made: Schema of the values in records.
            wanted: Schema that the payload requires.
        """
        if wanted is False:
            return Clash(path, _description(made), "no such field")
        if depth > MAX_DEPTH or wanted is True:
            return None
        variants = list(_variants(wanted, self._definitions))
        found = [self._inner(path, made, variant, depth) for variant in variants]
        if None in found:
            return None
        deeper = [clash for clash in found if clash is not None and clash.field != path]
        if deeper:
            return deeper[0]
        return Clash(path, _description(made), " or ".join(dict.fromkeys(_description(variant) for variant in variants)))

    def _inner(self, path: str, made: Schema, wanted: Schema, depth: int) -> Clash | None:
        common = {kind for kind in _types(made) if _fits(kind, _types(wanted))}
        if not common:
            return Clash(path, _description(made), _description(wanted))
        if common == {"array"} and "items" in made and isinstance(wanted.get("items"), dict):
            return self.clash(f"{path}[]", made["items"], wanted["items"], depth + 1)
        if common == {"object"}:
            return self._of_object(path, made, wanted, depth)
        return None

    def _of_object(self, path: str, made: Schema, wanted: Schema, depth: int) -> Clash | None:
        fields = wanted.get("properties", {})
        if (value := made.get("additionalProperties")) is not None:
            other = wanted.get("additionalProperties", True)
            return self.clash(
                f"{path}{{}}", value, {"anyOf": [*fields.values(), *([other] if other is not False else [])]}, depth + 1
            )
        if (declared := made.get("properties")) is None:
            return None
        if missing := [name for name in wanted.get("required", ()) if name not in declared]:
            return Clash(f"{path}.{missing[0]}", "nothing", "a value")
        for name, inner in declared.items():
            if clash := self.clash(f"{path}.{name}", inner, fields.get(name, wanted.get("additionalProperties", True)), depth + 1):
                return clash
        return None


def _variants(schema: Any, definitions: Schema, depth: int = 0) -> Iterator[Schema]:
    """Yield the alternatives that a schema allows, such as those of ``anyOf``, with references resolved."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        yield ANYTHING
        return
    reference = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    inner = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf", ())[:1]
    if reference:
        yield from _variants(definitions.get(reference), definitions, depth + 1)
    elif inner:
        for one in inner:
            yield from _variants(one, definitions, depth + 1)
    else:
        yield schema


def _types(schema: Schema) -> set[str]:
    """Return the JSON types that a schema allows."""
    given = schema.get("type")
    if given is not None:
        return {given} if isinstance(given, str) else set(given)
    if "const" in schema or "enum" in schema:
        return {_TYPES[type(value)] for value in schema.get("enum", [schema.get("const")])}
    return {*_TYPES.values()}


def _fits(made: str, wanted: set[str]) -> bool:
    # A number may be an integer, and every integer is a number.
    return made in wanted or ({made, *wanted} >= {"integer", "number"} and made in ("integer", "number"))


def _description(schema: Schema) -> str:
    """Return the types that a schema allows as text, such as ``a string or null``."""
    kinds = _types(schema)
    if kinds == set(_TYPES.values()):
        return "anything"
    items = schema.get("items")
    names = {
        "array": "an array" if not items or not isinstance(items, dict) or "type" not in items else f"an array of {items['type']}s",
        "object": "an object", "string": "a string", "integer": "an integer", "number": "a number", "boolean": "a boolean",
        "null": "null",
    }  # fmt: skip
    if kinds == set(SCALARS):
        return "a string, a number or a boolean"
    return " or ".join(name for kind, name in names.items() if kind in kinds)


def _is_taken(payload: Any, field: str, made: Schema) -> bool:
    """Return whether a field of a pydantic model accepts some value of the schema ``made``, which pydantic may convert."""
    return any(_takes(payload, field, sample) for sample in _samples(made))


def _samples(made: Schema) -> Iterator[Any]:
    if "items" in made:
        yield from ([one] for one in _samples(made["items"]))
    elif "additionalProperties" in made:
        yield {"a": 1}
    elif "properties" in made:
        yield {name: next(_samples(inner)) for name, inner in made["properties"].items()}
    else:
        for kind in _types(made):
            yield from _SAMPLES.get(kind, ())


def _takes(payload: Any, field: str, value: Any) -> bool:
    try:
        payload.model_validate_json(orjson.dumps({field: value}))
    except ValidationError as error:
        # An error without a location concerns the whole model, because other fields are missing.
        return not any(fault["loc"][:1] == (field,) for fault in error.errors())
    except Exception:  # noqa: BLE001  # validators may raise anything
        return True
    return True
