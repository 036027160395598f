"""A read store in OpenSearch, with a document for each cell or for each group, as the setting ``shape`` says.

The driver is opensearch-py. OpenSearch cannot be a source of values.
"""

from __future__ import annotations

from streams_app.read_store.core.rebuilding import Rebuilding
from streams_app.read_store.core.store import ReadableStore
from streams_app.read_store.opensearch.rebuilding import OpenSearchRebuilding
from streams_app.read_store.opensearch.store import OpenSearchStore
from streams_app.settings import ReadStoreSettings


def open_store(declared: ReadStoreSettings) -> ReadableStore:
    """Return the read store on the server of ``url``, with the layout that ``shape`` names, without connecting."""
    return OpenSearchStore(declared)


def open_rebuilding(declared: ReadStoreSettings, new: ReadableStore) -> Rebuilding:
    """Return the part of a rebuild that depends on OpenSearch; it does not connect yet."""
    return OpenSearchRebuilding(declared, new)
