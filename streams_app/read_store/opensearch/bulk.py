"""Batches on their way to OpenSearch: one ``_bulk`` request a batch, in parts only where a request would be too large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from streams_app.read_store.opensearch.connection import Fault, FaultError, OpenSearchClient
from streams_app.read_store.opensearch.documents import DocumentRequest

MOST_BYTES: Final = 5_000_000
"""Of one request. A server takes 100 MB by default, hosted ones sometimes 10; a larger item is a request of its own."""

NEVER: Final = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
"""Said of one document: it cannot be taken. Everything else, a full queue or disk or a shard that is away, passes."""

_WANTED: Final = "items.*.status,items.*.error,items.*.get._source"


@dataclass(slots=True)
class BulkOutcome:
    """What became of the items of a batch.

    Attributes:
        taken: Each with the written, stale and unchanged cells of it.
        rejected: Can never be taken as they are, if the store is as it should be.
        delayed: Not now.
    """

    taken: list[tuple[DocumentRequest, Sequence[int]]] = field(default_factory=list)
    rejected: list[tuple[DocumentRequest, Fault]] = field(default_factory=list)
    delayed: list[tuple[DocumentRequest, Fault]] = field(default_factory=list)

    def add(self, item: DocumentRequest, result: Any) -> None:
        """Adds what the server said of one item."""
        if "error" not in result:
            # Of a document that is not there and was not made, nothing is told.
            self.taken.append((item, result.get("get", {}).get("_source", {}).get("counts", (0, 0, 0))))
            return
        fault = Fault.of(result["status"], result["error"])
        (self.rejected if fault.status in NEVER else self.delayed).append((item, fault))


async def write(client: OpenSearchClient, alias: str, items: Sequence[DocumentRequest]) -> BulkOutcome:
    """Sends a batch.

    Raises:
        TryAgainError: A request was not answered; it may have been done or not.
    """
    outcome = BulkOutcome()
    for part in parts(items):
        await _write_part(client, alias, part, outcome)
    return outcome


async def _write_part(client: OpenSearchClient, alias: str, items: Sequence[DocumentRequest], outcome: BulkOutcome) -> None:
    body = b"".join(item.body for item in items)
    try:
        # Without "require_alias" an index of that name would be made by the first document, where nobody has prepared one.
        reply = await client.ask("POST", f"/{alias}/_bulk", body, {"require_alias": "true", "filter_path": _WANTED})
    except FaultError as error:
        if error.fault.status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise
        if len(items) == 1:
            outcome.rejected.append((items[0], error.fault))
            return
        middle = len(items) // 2
        await _write_part(client, alias, items[:middle], outcome)
        await _write_part(client, alias, items[middle:], outcome)
        return
    for item, result in zip(items, reply["items"], strict=True):
        outcome.add(item, result["update"])


def parts(items: Sequence[DocumentRequest], most_bytes: int = MOST_BYTES) -> Iterator[list[DocumentRequest]]:
    """Cuts a batch into requests (pure); none is empty."""
    part: list[DocumentRequest] = []
    size = 0
    for item in items:
        if part and size + len(item.body) > most_bytes:
            yield part
            part, size = [], 0
        part.append(item)
        size += len(item.body)
    if part:
        yield part
