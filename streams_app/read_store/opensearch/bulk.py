"""Writes batches to OpenSearch: one ``_bulk`` request per batch, or several if one would be too large.

It also decides, by the status of each item, whether the item is rejected for good or retried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from streams_app.read_store.opensearch.connection import Fault, FaultError, OpenSearchClient
from streams_app.read_store.opensearch.documents import DocumentRequest

MAX_BYTES: Final = 5_000_000
"""Maximum size of a request, in bytes. Servers accept 100 MB by default, hosted servers sometimes only 10 MB. A larger item is sent
in a request of its own."""

NEVER: Final = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
"""HTTP statuses of a document that can never be stored. Any other error, such as a full queue or a missing shard, is temporary."""

_WANTED: Final = "items.*.status,items.*.error,items.*.get._source"


@dataclass(slots=True)
class BulkOutcome:
    """The outcome of each item of a batch.

    Attributes:
        taken: Accepted items, each with the number of its cells that were written, that were stale, and that were unchanged.
        rejected: Items with an error of :data:`NEVER`: the document can never be stored, or the store is misconfigured.
        delayed: Items with a temporary error.
    """

    taken: list[tuple[DocumentRequest, Sequence[int]]] = field(default_factory=list)
    rejected: list[tuple[DocumentRequest, Fault]] = field(default_factory=list)
    delayed: list[tuple[DocumentRequest, Fault]] = field(default_factory=list)

    def add(self, item: DocumentRequest, result: Any) -> None:
        """Add an item to :attr:`taken`, :attr:`rejected` or :attr:`delayed`, according to the answer of the server for it."""
        if "error" not in result:
            # The answer has no counts if the document does not exist and was not created.
            self.taken.append((item, result.get("get", {}).get("_source", {}).get("counts", (0, 0, 0))))
            return
        fault = Fault.of(result["status"], result["error"])
        (self.rejected if fault.status in NEVER else self.delayed).append((item, fault))


async def write(client: OpenSearchClient, alias: str, items: Sequence[DocumentRequest]) -> BulkOutcome:
    """Send a batch in one or several requests, and return the outcome of each item.

    A request that the server rejects because of its size is sent again in two halves.

    Raises:
        FaultError: The server rejected a request as a whole; earlier requests of the batch were executed.
        TryAgainError: A request was not answered. Its outcome is unknown; earlier requests of the batch were executed.
    """
    outcome = BulkOutcome()
    for part in parts(items):
        await _write_part(client, alias, part, outcome)
    return outcome


async def _write_part(client: OpenSearchClient, alias: str, items: Sequence[DocumentRequest], outcome: BulkOutcome) -> None:
    body = b"".join(item.body for item in items)
    try:
        # Without "require_alias", the first document would create an index of that name if `init` did not run.
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


def parts(items: Sequence[DocumentRequest], max_bytes: int = MAX_BYTES) -> Iterator[list[DocumentRequest]]:
    """Split the items of a batch into the contents of ``_bulk`` requests, in order (pure).

    Each part has at least one item and at most ``max_bytes`` bytes; a larger item becomes a part of its own.
    """
    part: list[DocumentRequest] = []
    size = 0
    for item in items:
        if part and size + len(item.body) > max_bytes:
            yield part
            part, size = [], 0
        part.append(item)
        size += len(item.body)
    if part:
        yield part
