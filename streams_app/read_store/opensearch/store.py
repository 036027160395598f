"""The read store in OpenSearch, with a document for each cell or for each group.

A batch is one ``_bulk`` request, or several if it is large. Each item names a stored script of the server, which atomically
compares versions and writes the document only if the version is newer. OpenSearch has no transactions, so the checkpoint is
written once the whole batch is acknowledged. After a failure in between, the batch is sent again, which does not change what was
written. To find unchanged values, the JSON of the new and the stored value is compared. The JSON of lists and objects has sorted
names, because the server does not preserve the order of names.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.core.merge import Cell, CellChange, JsonText, StoredCell, Value
from streams_app.read_store.core.store import CheckpointError, CheckpointStep, Counts, NotStorableError, Repair
from streams_app.read_store.core.values import possible, surrogate_fault
from streams_app.read_store.opensearch.connection import LONG_SECONDS, BulkOutcome, Fault, FaultError, OpenSearchClient, write_bulk
from streams_app.read_store.opensearch.documents import DocumentRequest, Shape, document_id, value_json
from streams_app.read_store.opensearch.indices import Indices, WriteBlock, write_alias
from streams_app.settings import ReadStoreSettings

logger = logging.getLogger(__name__)

INDEX_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}", re.ASCII)
MAX_PARTITIONS: Final = 10_000

SWITCH_MS: Final = 30_000
"""Longest time for which a rebuild may block the indices during its switch, in ms. Afterwards, a worker lifts the block, and the
rebuild must switch again."""
BLOCKED: Final = "cluster_block_exception"

RESET_VERSIONS: Final = {
    "cells": "ctx._source.version = -1",
    "groups": "for (entry in ctx._source.versions.entrySet()) { entry.setValue(-1); } ctx._source.guarded = 0",
}
_ALIAS: Final = {"require_alias": "true"}
"""Request parameter that requires an alias. Without it, the first document would create an index with the name of the alias if
`init` did not run."""
_WHOLE: Final = {"allow_partial_search_results": "false"}
COUNT_VERSIONED: Final = {"cells": "version", "groups": "guarded"}

CELLS_A_GROUP: Final = 50
"""Assumed number of cells in a document of the shape ``groups``, to convert a number of cells to a number of documents."""

PAGE: Final = 1_000
"""Number of documents of one group that are requested at once."""

_SORT: Final = {"cells": ("group_key", "name"), "groups": ("group_key",)}

_HIDDEN: Final = ["counts", "number", "text"]


class OpenSearchStore:
    """A read store in OpenSearch, with a document for each cell or for each group."""

    def __init__(self, settings: ReadStoreSettings) -> None:
        if INDEX_NAME.fullmatch(settings.table) is None:
            raise ConfigurationError(
                [f"{settings.section}.table: '{settings.table}' is not a valid name of an index (a-z, 0-9 and _, a letter first)"]
            )
        self._name = settings.name
        self._table = settings.table
        self._checkpoint_alias = f"{settings.table}-progress"
        self._written = write_alias(settings.table, settings.shape)
        self._shape = Shape(settings.shape, settings.columns)
        self._client = OpenSearchClient(settings)
        self._indices = Indices(self._client, settings.table, self._shape, settings.section)
        self._block = WriteBlock(self._client, settings.table)
        self._blocked_since_ms: int | None = None
        self._last_attempt: tuple[CheckpointStep | None, Counter[str]] = (None, Counter())

    async def initialise(self) -> list[str]:
        """Also lifts the write block of a rebuild."""
        done = await self._indices.initialise()
        if await self._block.lift():
            done.append("lifted the block of an interrupted rebuild")
        return done

    async def missing(self) -> list[str]:
        return await self._indices.missing()

    async def probe(self) -> None:
        item = self._shape.probe()
        outcome = await self._write([item])
        for _, fault in (*outcome.rejected, *outcome.delayed):
            raise self._away(fault)
        # The document never exists, so nothing is written.
        nothing = {"scripted_upsert": True, "upsert": {}, "script": {"source": "ctx.op = 'none'"}}
        await self._ask("POST", f"/{self._checkpoint_alias}/_update/{quote(item.id, safe='')}", nothing, _ALIAS)

    async def checkpoints(self) -> dict[TP, int]:
        await self._ask("POST", f"/{self._checkpoint_alias}/_refresh")
        found = await self._ask("POST", f"/{self._checkpoint_alias}/_search", {"size": MAX_PARTITIONS}, _WHOLE)
        rows = [hit["_source"] for hit in found["hits"]["hits"]]
        return {TP(row["topic"], row["partition"]): row["next_offset"] for row in rows}

    async def apply(self, changes: Sequence[CellChange], step: CheckpointStep, now_ms: int) -> Counts:
        """After an error, even a CheckpointError, documents may be written; a repeated call does not change them.

        If the indices are blocked for longer than any switch takes, the block is lifted, because the rebuild that has set it may be
        dead.
        """
        try:
            counts = await self._applied(changes, step, now_ms)
        except FaultError as error:
            if error.fault.kind == BLOCKED:
                await self._lift_stale_block(now_ms)
            raise
        self._blocked_since_ms = None
        return counts

    async def cells(self, fold: str, after: Cell | None, limit: int) -> list[tuple[Cell, StoredCell]]:
        """The index is refreshed before the first page, so the pages contain everything that was written before."""
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

    async def read(self, cells: Sequence[Cell]) -> dict[Cell, StoredCell]:
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
        await self._client.ask("POST", f"/{self._table}/_refresh")
        return [cell for group in possible(groups, surrogate_fault) for cell in await self._names_of(*group)]

    async def remove_groups(self, groups: Sequence[tuple[str, str]]) -> int:
        await self._client.ask("POST", f"/{self._table}/_refresh")
        removed = 0
        for group in possible(groups, surrogate_fault):
            body = {"query": _of_group(*group)}
            reply = await self._ask("POST", f"/{self._table}/_delete_by_query", body, {"refresh": "true"}, seconds=LONG_SECONDS)
            removed += int(reply["deleted"])
        return removed

    async def _applied(self, changes: Sequence[CellChange], step: CheckpointStep, now_ms: int) -> Counts:
        index, condition, found = await self._locate_checkpoint(step)
        outcome = await self._write(self._shape.items(changes, now_ms))
        if outcome.rejected:
            await self._retry_rejected(outcome, now_ms)
        counts = self._counted(step, outcome)
        if outcome.delayed:
            raise self._away(outcome.delayed[0][1])
        if outcome.rejected:
            raise NotStorableError(rejected_cells(outcome))
        if found != step.to:
            await self._write_checkpoint(step, index, condition, now_ms)
        self._last_attempt = (None, Counter())
        return counts

    async def set_checkpoint(self, tp: TP, offset: int, now_ms: int) -> None:
        await self._ask("PUT", _document(self._checkpoint_alias, tp), _checkpoint(tp, offset, now_ms), _ALIAS)

    def rejection(self, change: CellChange) -> str | None:
        return self._shape.rejection(change)

    async def count_versioned(self, fold: str) -> int | None:
        if await self.missing():
            return None
        await self._ask("POST", f"/{self._table}/_refresh")
        field = COUNT_VERSIONED[self._shape.name]
        body = {
            "size": 0, "query": _of(fold), "track_total_hits": True,
            "aggs": {"guarded": {"sum": {"field": field}}, "newer": {"filter": {"range": {field: {"gte": 0}}}}},
        }  # fmt: skip
        found = await self._ask("POST", f"/{self._table}/_search", body, _WHOLE)
        counted = found["aggregations"]
        return int(counted["newer"]["doc_count"] if field == "version" else counted["guarded"]["value"])

    async def reset_versions(self, fold: str) -> None:
        await self._ask("POST", f"/{self._table}/_refresh")
        body = {"query": _of(fold), "script": {"source": RESET_VERSIONS[self._shape.name]}}
        await self._ask("POST", f"/{self._table}/_update_by_query", body, {"refresh": "true"}, seconds=LONG_SECONDS)

    async def close(self) -> None:
        await self._client.close()

    async def _locate_checkpoint(self, step: CheckpointStep) -> tuple[str, dict[str, str | int], int | None]:
        """Read the checkpoint of a partition, and check that it is as ``step`` expects.

        The new checkpoint must be written to the index from which the old one was read, and not to the alias: the alias may
        belong to another index meanwhile, which does not have the batch.

        Returns:
            The index of the checkpoint; the parameters with which a write fails if the checkpoint has changed since it was read;
            and the stored offset, or None if there is no checkpoint.
        """
        found: dict[str, Any] | None
        try:
            found = await self._ask("GET", _document(self._checkpoint_alias, step.tp))
        except FaultError as error:
            if error.fault.status != HTTPStatus.NOT_FOUND or error.fault.kind:
                raise
            found = None  # the index exists, but not the document
        offset = None if found is None else found["_source"]["next_offset"]
        if offset not in (step.after, step.to):
            raise CheckpointError(self._client.what, step.tp, offset, step.after)
        if found is None:
            return self._checkpoint_alias, {"require_alias": "true", "op_type": "create"}, offset
        return found["_index"], {"if_seq_no": found["_seq_no"], "if_primary_term": found["_primary_term"]}, offset

    async def _write_checkpoint(self, step: CheckpointStep, index: str, condition: Mapping[str, str | int], now_ms: int) -> None:
        body = _checkpoint(step.tp, step.to, now_ms)
        try:
            await self._ask("PUT", _document(index, step.tp), body, condition)
        except FaultError as error:
            if error.fault.status != HTTPStatus.CONFLICT:
                raise
            raise CheckpointError(self._client.what, step.tp, None, step.after) from error

    async def _lift_stale_block(self, now_ms: int) -> None:
        if self._blocked_since_ms is None:
            self._blocked_since_ms = now_ms
        if now_ms - self._blocked_since_ms >= SWITCH_MS and await self._block.lift():
            logger.warning("lifted the block of an interrupted rebuild store=%s table=%s", self._name, self._table)

    async def _write(self, items: Sequence[DocumentRequest]) -> BulkOutcome:
        try:
            return await write_bulk(self._client, self._written, items)
        except FaultError as error:
            raise self._away(error.fault) from error

    async def _retry_rejected(self, outcome: BulkOutcome, now_ms: int) -> None:
        """Write rejected values again, into the object ``other`` instead of a field, and update the outcome.

        The server rejects a value if the index has too many fields, or if the field has another type. The object ``other`` accepts
        the value, because it is not indexed. The server also rejects every document if the script is missing, or if an alias has
        two indices; therefore the store is probed first.

        Raises:
            TryAgainError: The store is misconfigured.
        """
        await self.probe()
        retried = self._shape.without_fields([item for item, _ in outcome.rejected], now_ms)
        if retried:
            retried_result = await self._write(retried)
            outcome.taken += retried_result.taken
            outcome.rejected = retried_result.rejected
            outcome.delayed += retried_result.delayed

    def _counted(self, step: CheckpointStep, outcome: BulkOutcome) -> Counts:
        """Count the cells of a batch by their outcome.

        If an earlier attempt of the same step has written a cell, the cell is unchanged now, but counts as written.
        """
        tried, before = self._last_attempt
        attempted = Counter(before if tried == step else {})
        left = attempted.copy()
        total = [0, 0, 0]
        for item, (written, stale, unchanged) in outcome.taken:
            known = min(left[item.id], unchanged)
            left[item.id] -= known
            attempted[item.id] += written
            total = [total[0] + written + known, total[1] + stale, total[2] + unchanged - known]
        self._last_attempt = (step, attempted)
        return Counts(*total)

    async def _ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        given: Mapping[str, str | int] | None = None,
        *,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        try:
            return await self._client.ask(method, path, body, given, seconds=seconds)
        except FaultError as error:
            if error.fault.kind == "index_not_found_exception":
                raise self._away(error.fault) from error
            raise

    def _away(self, fault: Fault) -> FaultError:
        """Return the exception for an error of the server; if an index or the script is missing, the exception names the remedy."""
        is_missing = fault.status == HTTPStatus.NOT_FOUND or "unable to find script" in fault.text
        init = f"; run `streams-app read-store init --store {self._name}`" if is_missing else ""
        return self._client.fault_error(replace(fault, text=f"{fault.text}{init}"))

    async def _names_of(self, fold: str, group_key: str) -> list[Cell]:
        body: dict[str, Any] = {
            "size": PAGE, "query": _of_group(fold, group_key),
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

    async def as_stored(self, changes: Sequence[CellChange]) -> list[CellChange]:
        found: list[CellChange] = []
        too_deep: dict[Cell, str] = {}
        for change in changes:
            try:
                found.append(replace(change, value=_value(json.loads(value_json(change.value)))))
            except RecursionError:
                too_deep[change.cell] = "the value is nested more deeply than Python's parser of JSON reads it"
        if too_deep:
            raise NotStorableError(too_deep)
        return found

    async def repair(self, repairs: Sequence[Repair], now_ms: int, *, is_trial: bool = False) -> int:
        if is_trial:
            return 0
        outcome = await self._write(self._shape.repairs(repairs, now_ms))
        if outcome.rejected:
            await self._retry_rejected(outcome, now_ms)
        for _, fault in outcome.delayed:
            raise self._away(fault)
        written = sum(written for _, (written, _, _) in outcome.taken)
        if outcome.rejected:
            raise NotStorableError(rejected_cells(outcome), written)
        return written

    def _of(self, source: Mapping[str, Any]) -> Iterator[tuple[Cell, StoredCell]]:
        """Yield the cells of a document, each with its stored version and value."""
        fold, group_key = source["fold"], source["group_key"]
        if self._shape.name == "cells":
            yield Cell(fold, group_key, source["name"]), StoredCell(source["version"], _value(source.get("value")))
            return
        other = source.get("other", {})
        for name, version in sorted(source["versions"].items()):
            field = self._shape.field(name)
            value = source[field] if field is not None and field in source else other.get(name)
            yield Cell(fold, group_key, name), StoredCell(version, _value(value))


def rejected_cells(outcome: BulkOutcome) -> dict[Cell, str]:
    """Return the cells of the documents that the server rejected, each with the reason (pure)."""
    return {change.cell: fault.text for item, fault in outcome.rejected for change in item.changes}


def _document(index: str, tp: TP) -> str:
    return f"/{index}/_doc/{quote(document_id((tp.topic, tp.partition)), safe='')}"


def _checkpoint(tp: TP, offset: int, now_ms: int) -> dict[str, str | int]:
    return {"topic": tp.topic, "partition": tp.partition, "next_offset": offset, "updated_ms": now_ms}


def _of_group(fold: str, group_key: str) -> dict[str, Any]:
    return {"bool": {"filter": [{"term": {"fold": fold}}, {"term": {"group_key": group_key}}]}}


def _of(fold: str) -> dict[str, Any]:
    return {"term": {"fold": fold}}


def _value(value: Any) -> Value:
    """Convert a parsed JSON value. Lists and objects become JSON text with sorted names, so that equal values have equal texts."""
    if isinstance(value, (dict, list)):
        return JsonText(json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")))
    found: Value = value
    return found
