"""What a store in OpenSearch holds, and how it is repaired, see :mod:`streams_app.read_store.targets.readable_store`.

Values are compared as what their JSON says: lists and objects as its text with sorted names, as the server keeps no order of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from streams_app.errors import TryAgainError
from streams_app.read_store.core.merge import Cell, CellChange, JsonText, Stored, Value
from streams_app.read_store.core.values import possible, surrogate_fault
from streams_app.read_store.targets.opensearch import OpenSearchStore, refused_cells
from streams_app.read_store.targets.opensearch_shapes import value_json
from streams_app.read_store.targets.port import NotStorableError
from streams_app.read_store.targets.readable_store import Repair

CELLS_A_GROUP: Final = 50
"""A page has fewer groups than cells: a document of a group has several."""

PAGE: Final = 1_000
"""Names of one group asked for at once."""

_SORT: Final = {"cells": ("group_key", "name"), "groups": ("group_key",)}
_HIDDEN: Final = ["counts", "number", "text"]


class OpenSearchBack(OpenSearchStore):
    """A store in OpenSearch that reads back, in both shapes."""

    async def cells(self, fold: str, after: Cell | None, limit: int) -> list[tuple[Cell, Stored]]:
        """A page of the cells of a fold; the first one looks at all that was written before it."""
        keys = _SORT[self._shape.name]
        body: dict[str, Any] = {
            "size": limit if self._shape.name == "cells" else max(1, limit // CELLS_A_GROUP),
            "query": {"term": {"fold": fold}}, "sort": list(keys), "_source": {"excludes": _HIDDEN},
        }  # fmt: skip
        if after is None:
            await self._client.ask("POST", f"/{self._table}/_refresh")
        else:
            body["search_after"] = [getattr(after, key) for key in keys]
        return [one for hit in await self._hits(body) for one in self._of(hit["_source"])]

    async def read(self, cells: Sequence[Cell]) -> dict[Cell, Stored]:
        """What the store holds of some cells, in this moment."""
        ids = list(dict.fromkeys(self._shape.document(cell) for cell in possible(cells, surrogate_fault)))
        if not ids:
            return {}
        body = {"docs": [{"_id": each, "_source": {"exclude": _HIDDEN}} for each in ids]}
        found = await self._client.ask("POST", f"/{self._table}/_mget", body)
        if failed := [doc["error"] for doc in found["docs"] if "error" in doc]:
            raise TryAgainError(f"{self._client.what}: {failed[0].get('reason')}")
        known = {cell: stored for doc in found["docs"] if doc["found"] for cell, stored in self._of(doc["_source"])}
        return {cell: known[cell] for cell in cells if cell in known}

    async def names(self, groups: Sequence[tuple[str, str]]) -> list[Cell]:
        """The cells of some groups, those that were written just now among them."""
        await self._client.ask("POST", f"/{self._table}/_refresh")
        return [cell for group in possible(groups, surrogate_fault) for cell in await self._names_of(*group)]

    async def _names_of(self, fold: str, group_key: str) -> list[Cell]:
        body: dict[str, Any] = {
            "size": PAGE, "query": {"bool": {"filter": [{"term": {"fold": fold}}, {"term": {"group_key": group_key}}]}},
            "sort": list(_SORT[self._shape.name]), "_source": {"excludes": _HIDDEN},
        }  # fmt: skip
        found: list[Cell] = []
        while hits := await self._hits(body):
            found += [cell for hit in hits for cell, _ in self._of(hit["_source"])]
            body["search_after"] = hits[-1]["sort"]
        return found

    async def _hits(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        found = await self._client.ask("POST", f"/{self._table}/_search", body, {"allow_partial_search_results": "false"})
        hits: list[dict[str, Any]] = found["hits"]["hits"]
        return hits

    async def held(self, changes: Sequence[CellChange]) -> list[CellChange]:
        """The same changes with values as the server would hold them."""
        return [replace(change, value=_value(json.loads(value_json(change.value)))) for change in changes]

    async def repair(self, repairs: Sequence[Repair], now_ms: int, *, is_trial: bool = False) -> int:
        """Writes cells that are still as they were found; a document at a time is one step, not the whole."""
        if is_trial:
            return 0
        outcome = await self._write(self._shape.repairs(repairs, now_ms))
        if outcome.refused:
            await self._look_again(outcome, now_ms)
        for _, fault in outcome.delayed:
            raise self._away(fault)
        written = sum(written for _, (written, _, _) in outcome.taken)
        if outcome.refused:
            raise NotStorableError(refused_cells(outcome), written)
        return written

    def _of(self, source: Mapping[str, Any]) -> Iterator[tuple[Cell, Stored]]:
        """The cells of a document."""
        fold, group_key = source["fold"], source["group_key"]
        if self._shape.name == "cells":
            yield Cell(fold, group_key, source["name"]), Stored(source["version"], _value(source.get("value")))
            return
        other = source.get("other", {})
        for name, version in sorted(source["versions"].items()):
            field = self._shape.field(name)
            value = source[field] if field is not None and field in source else other.get(name)
            yield Cell(fold, group_key, name), Stored(version, _value(value))


def _value(value: Any) -> Value:
    """Of two values that say the same one is like the other."""
    if isinstance(value, (dict, list)):
        return JsonText(json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")))
    found: Value = value
    return found
