"""An OpenSearch in tests: a store of each shape, and access to the server that does not use our code."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.helpers.read_store.stores import StoreHarness


def asked(port: int, method: str, path: str, body: Any = None) -> Any:
    """Send a request without our client, and return the answer; an error is an answer, too."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}, method=method)
    try:
        with urlopen(request, timeout=30) as answer:
            return json.load(answer)
    except HTTPError as error:
        return json.load(error)


class Search(StoreHarness):
    """One store on a server, under a table of its own."""

    has_transactions = False

    def __init__(self, port: int, table: str, shape: str, **given: Any) -> None:
        self.port = port
        self.table = table
        super().__init__(**{"url": f"opensearch+http://127.0.0.1:{port}", "shape": shape, "table": table, **given})

    async def close(self) -> None:
        """Close all its stores, and delete their indices."""
        await super().close()
        self.ask("DELETE", f"/{self.table}-*")
        self.ask("DELETE", f"/_index_template/{self.table}")

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        self.settled(**{"index.blocks.write": True})
        yield
        self.settled(**{"index.blocks.write": None})

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request by :func:`asked`."""
        return asked(self.port, method, path, body)

    def settled(self, **settings: Any) -> None:
        """Return the settings of the index."""
        answer = self.ask("PUT", f"/{self.table}-000001/_settings", settings)
        assert answer == {"acknowledged": True}

    def documents(self) -> list[dict[str, Any]]:
        """Return all documents, sorted."""
        self.ask("POST", f"/{self.table}/_refresh")
        found = self.ask("POST", f"/{self.table}/_search", {"size": 5_000})["hits"]["hits"]
        return sorted((hit["_source"] for hit in found), key=lambda each: (each["group_key"], each.get("name", "")))

    def searched(self, query: Any) -> list[str]:
        """Return the groups that a query finds."""
        self.ask("POST", f"/{self.table}/_refresh")
        found = self.ask("POST", f"/{self.table}/_search", {"query": query})["hits"]["hits"]
        return sorted(hit["_source"]["group_key"] for hit in found)

    def written(self) -> int:
        """Return the server's own count of written documents."""
        return self.ask("GET", f"/{self.table}/_stats/indexing")["_all"]["primaries"]["indexing"]["index_total"]

    async def rows(self, fold: str | None = None) -> list[tuple[Any, ...]]:
        return self._rows(fold)

    def cells(self) -> dict[tuple[str, str], tuple[Any, int]]:
        """Return (group, name) → (value, version)."""
        return {(group, name): (value, version) for group, name, value, version, _ in self._rows(None)}

    def _rows(self, fold: str | None) -> list[tuple[Any, ...]]:
        found = []
        for each in self.documents():
            if fold not in (None, each["fold"]):
                continue
            if self.is_groups:
                versions = each["versions"]
                values = {name: each.get(name, each.get("other", {}).get(name)) for name in versions}
            else:
                versions, values = {each["name"]: each["version"]}, {each["name"]: each.get("value")}
            found += [(each["group_key"], name, values[name], version, each["updated_ms"]) for name, version in versions.items()]
        return sorted(found, key=lambda row: (*row[:2], row[3]))
