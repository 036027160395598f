"""Finds changes in an AsyncAPI document that break producers or consumers of an older one (pure).

These changes are breaking:

* A removed event or field, a newly required field, another type or another format: one document permits events that the other one
  rejects.
* Another topic: consumers do not find the events.
* Another key: events go to other partitions, and the events of one key are no longer in order.

Fields may be added if they are not required. Descriptions and defaults may change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

FOR_PEOPLE: Final = frozenset({"title", "description", "default", "examples", "deprecated", "discriminator"})
STRUCTURE: Final = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "properties", "required", "items", "prefixItems", "additionalProperties"}
)


def breaking_changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return the breaking changes between two AsyncAPI documents, one text for each, in the order of the old document.

    Raises:
        ValueError: ``old`` or ``new`` is not an AsyncAPI 3 document.
    """
    try:
        return _breaking_changes(old, new)
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("it is not as `streams-app events asyncapi` writes it") from error


def _breaking_changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    changes = []
    before, after = _messages(old), _messages(new)
    was, topics = _topics(old), _topics(new)
    for key, message in before.items():
        if key not in after:
            changes.append(f"{key}: the event is gone")
            continue
        if moved := was.get(key, set()) - topics.get(key, set()):
            changes.append(f"{key}: it is no longer in the topic {sorted(moved)[0]}")
        changes += _around(key, message, after[key])
        changes += dict.fromkeys(_DocumentComparison(old, new).of(key, _payload(message), _payload(after[key])))
    return changes


def _around(key: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Yield the breaking changes of a message outside its payload. Properties that the older document lacks are not compared."""
    for name, meaning in (("contentType", "written as"), ("x-keyed-by", "keyed by")):
        if name in old and old[name] != new.get(name):
            yield f"{key}: it is {meaning} {new.get(name) or 'nothing'}, and was {meaning.split()[1]} {old[name] or 'nothing'}"


def _payload(message: dict[str, Any]) -> dict[str, Any]:
    """Return the payload of a message without ``before``, which has the same type, so that no change is reported twice."""
    payload: dict[str, Any] = message.get("payload", {})
    return {**payload, "properties": {name: field for name, field in payload.get("properties", {}).items() if name != "before"}}


def _messages(document: dict[str, Any]) -> dict[str, Any]:
    if not str(document.get("asyncapi", "")).startswith("3."):
        raise ValueError("it is not an AsyncAPI 3 document")
    messages: dict[str, Any] = document.get("components", {}).get("messages", {})
    return messages


def _topics(document: dict[str, Any]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for channel in document.get("channels", {}).values():
        for key in channel.get("messages", {}):
            found.setdefault(key, set()).add(channel["address"])
    return found


class _DocumentComparison:
    """Finds breaking changes between the JSON Schemas of an older and a newer AsyncAPI document."""

    def __init__(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        self._old, self._new = old, new
        # References that were compared, because a type may contain itself.
        self._seen: set[tuple[str, str]] = set()

    def of(self, path: str, old: Any, new: Any) -> Iterator[str]:
        references = old.get("$ref", ""), new.get("$ref", "")
        if references in self._seen:
            return
        if all(references):
            self._seen.add(references)
        before, after = _resolved(self._old, old), _resolved(self._new, new)
        variants, others = _variants(before), _variants(after)
        if [_facts(self._old, one) for one in variants] != [_facts(self._new, one) for one in others]:
            yield f"{path}: the type has changed from {_description(self._old, variants)} to {_description(self._new, others)}"
            return
        for one, other in zip(variants, others, strict=True):
            yield from self._inside(path, _resolved(self._old, one), _resolved(self._new, other))

    def _inside(self, path: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
        fields, now = old.get("properties", {}), new.get("properties", {})
        for name, field in fields.items():
            if name not in now:
                yield f"{path}.{name}: the field is gone"
            else:
                yield from self.of(f"{path}.{name}", field, now[name])
        for name in sorted(set(new.get("required", ())) - set(old.get("required", ()))):
            yield f"{path}.{name}: the field is newly required"
        for number, (one, other) in enumerate(zip(old.get("prefixItems", ()), new.get("prefixItems", ()), strict=False)):
            yield from self.of(f"{path}[{number}]", one, other)
        for inner, suffix in (("items", "[]"), ("additionalProperties", "{}")):
            if inner in old or inner in new:
                yield from self.of(path + suffix, _inner(old, inner), _inner(new, inner))


def _inner(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the schema under a keyword such as ``items``. If it is missing, any value is valid, so the schema is empty."""
    inner = schema.get(name, True)
    return inner if isinstance(inner, dict) else {} if inner else {"not": {}}


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with its references and its ``allOf`` replaced by what they stand for, at the top level."""
    found: dict[str, Any] = dict(schema)
    if isinstance(reference := found.pop("$ref", None), str):
        target: Any = document
        for step in reference.removeprefix("#/").split("/"):
            target = target.get(step, {})
        found = {**_resolved(document, target), **found}
    for part in found.pop("allOf", ()):
        inner = _resolved(document, part)
        properties = {**inner.get("properties", {}), **found.get("properties", {})}
        required = [*inner.get("required", ()), *found.get("required", ())]
        found = {**inner, **found, "properties": properties, "required": required}
    return found


def _variants(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return schema.get("anyOf") or schema.get("oneOf") or [schema]


def _facts(document: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return a text for comparison: the keywords of a schema that determine which values are valid, without nested schemas."""
    resolved = _resolved(document, schema)
    kept = {key: value for key, value in resolved.items() if key not in FOR_PEOPLE | STRUCTURE}
    if isinstance(kept.get("enum"), list):
        kept["enum"] = sorted(kept["enum"], key=repr)
    return json.dumps(kept, sort_keys=True)


def _description(document: dict[str, Any], variants: list[dict[str, Any]]) -> str:
    return " or ".join(_facts(document, one) for one in variants)
