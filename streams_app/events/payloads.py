"""Checks which types can be payloads, and finds the JSON names of their fields (pure).

A payload is a JSON object, whose fields are at the top level of the value. Its type is a msgspec Struct, a dataclass, a TypedDict
or a pydantic model. Types that msgspec writes as an array or a number cannot be payloads. The checks use only the JSON Schema of a
type.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import is_dataclass
from typing import Any, Final, get_origin

import msgspec
from pydantic import BaseModel, create_model
from typing_extensions import is_typeddict

from streams_app.errors import text_of
from streams_app.formatting import suggestion

RESERVED: Final = ("before", "metadata")
"""Fields at the top level of a value that do not belong to the payload."""


NO_OBJECT: Final = "is not an object with fields: take a msgspec Struct, a dataclass, a TypedDict or a pydantic model"


def is_pydantic(payload: Any) -> bool:
    """Return whether a type is a pydantic model, which is decoded and encoded by pydantic instead of msgspec."""
    return isinstance(payload, type) and issubclass(payload, BaseModel)


def has_hooks(kind: Any) -> bool:
    """Return whether creating an object of a type may call functions of its author; always true for a pydantic model.

    Such functions are ``__post_init__``, the hooks of attrs, default factories, ``_missing_`` of an Enum, and decoders of custom
    types. The types of fields are checked as well.
    """
    if is_pydantic(kind):
        return True
    seen: set[int] = set()
    unseen: list[Any] = [msgspec.inspect.type_info(kind)]
    while unseen:
        part = unseen.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if _is_hooked(part):
            return True
        for attribute in (getattr(part, name) for name in getattr(part, "__struct_fields__", ())):
            unseen += [one for one in (attribute if isinstance(attribute, tuple) else (attribute,)) if isinstance(one, _PARTS)]
    return False


_PARTS: Final = (msgspec.inspect.Type, msgspec.inspect.Field)
_PLAIN_FACTORIES: Final = (msgspec.NODEFAULT, list, dict, set, frozenset, tuple, bytearray)


def _is_hooked(part: Any) -> bool:
    if isinstance(part, msgspec.inspect.Field):
        return part.default_factory not in _PLAIN_FACTORIES
    if isinstance(part, msgspec.inspect.EnumType):
        return "_missing_" in {name for one in part.cls.__mro__ if one.__module__ != "enum" for name in vars(one)}
    hooks = ("__post_init__", "__attrs_pre_init__", "__attrs_post_init__")
    return isinstance(part, msgspec.inspect.CustomType) or any(hasattr(getattr(part, "cls", None), name) for name in hooks)


def with_events(item: Any) -> type[Any]:
    """Return an object type whose field ``events`` is a list of ``item``, as in the records of a fold with ``keep = "events"``."""
    name = f"{item.__name__}List"
    if is_pydantic(item):
        model: type[Any] = create_model(name, events=(list[item], ...))
        return model
    return msgspec.defstruct(name, [("events", list[item])])


def _has_fields(payload: Any) -> bool:
    """Return whether a type is of a kind that can be a payload. The fields are not checked."""
    kind = get_origin(payload) or payload
    if not isinstance(kind, type):
        return False
    return issubclass(kind, (msgspec.Struct, BaseModel)) or is_dataclass(kind) or is_typeddict(kind)


def schema_of(payload: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON Schema of a type, and the schemas that it references: ``#/$defs/NAME`` refers to the item NAME.

    Raises:
        TypeError: JSON cannot represent the type.
    """
    try:
        if is_pydantic(payload):
            schema = payload.model_json_schema(by_alias=True)
            definitions = schema.pop("$defs", {})
        else:
            (schema,), definitions = msgspec.json.schema_components([payload], ref_template="#/$defs/{name}")
    except Exception as error:  # hooks and annotations of the user run here, and may raise anything
        raise TypeError(text_of(error)) from error
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    return definitions[name] if name in definitions else schema, definitions


def payload_faults(label: str, payload: Any, reserved: Collection[str] = ()) -> list[str]:
    """Return the reasons why a type cannot be a payload, one text for each; empty if it can.

    Args:
        label: What the type is, with which each text begins, such as ``the metadata``.
    """
    called = getattr(payload, "__name__", repr(payload))
    try:
        schema, _ = schema_of(payload)
    except TypeError as error:
        if not _has_fields(payload):
            return [f"{label} {called} {NO_OBJECT}"]
        return [f"{label} {called} has no JSON Schema: {error}"]
    if schema.get("type") != "object" or "properties" not in schema:
        return [f"{label} {called} {NO_OBJECT}"]
    faults = []
    if taken := sorted(set(schema["properties"]) & set(reserved)):
        faults.append(f"{label} {called} has a field {taken[0]!r}: the names {' and '.join(reserved)} stand beside the payload")
    if schema.get("additionalProperties") is False:
        faults.append(f"{label} {called} forbids unknown fields: its producers could not add any")
    return faults


def key_faults(payload: Any, keyed_by: str | None) -> list[str]:
    """Return the reasons why a field cannot be the key of an event, one text for each; empty also if the type itself has faults."""
    if keyed_by is None or payload_faults("", payload):
        return []
    fields = list(schema_of(payload)[0]["properties"])
    if keyed_by in fields:
        return []
    hint = suggestion(keyed_by, fields) or f"; its fields on the wire: {', '.join(fields)}"
    return [f"keyed_by = {keyed_by!r} is not a field of {payload.__name__}{hint}"]
