"""An OpenSearch as tests see it: a store of each shape, and what somebody else sees and does on the server."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from streams_app.read_store.targets.choice import open_store
from streams_app.read_store.targets.port import ReadStore
from streams_app.settings import ReadStoreSettings


def asked(port: int, method: str, path: str, body: Any = None) -> Any:
    """What the server answers somebody who does not use our client; an error is what it answers, too."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}, method=method)
    try:
        with urlopen(request, timeout=30) as answer:
            return json.load(answer)
    except HTTPError as error:
        return json.load(error)


class Search:
    """One store on a server, under a table of its own."""

    def __init__(self, port: int, table: str, shape: str, **given: Any) -> None:
        self.port = port
        self.table = table
        self.shape = shape
        self.settings = ReadStoreSettings.model_validate(
            {
                "name": "dashboard", "url": f"opensearch+http://127.0.0.1:{port}", "table": table, "shape": shape,
                "folds": ["f"], "source": "carried", **given,
            }
        )  # fmt: skip
        self.opened: list[ReadStore] = []
        self.store = self.another()

    def another(self) -> ReadStore:
        """A store of another process on the same indices."""
        self.opened.append(open_store(self.settings))
        return self.opened[-1]

    async def close(self) -> None:
        """All its stores, and what they made."""
        for store in self.opened:
            await store.close()
        self.ask("DELETE", f"/{self.table}-*")
        self.ask("DELETE", f"/_index_template/{self.table}")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """See :func:`asked`."""
        return asked(self.port, method, path, body)

    def settled(self, **settings: Any) -> None:
        """Settings of the index."""
        answer = self.ask("PUT", f"/{self.table}-000001/_settings", settings)
        assert answer == {"acknowledged": True}

    def documents(self) -> list[dict[str, Any]]:
        """All of them, sorted."""
        self.ask("POST", f"/{self.table}/_refresh")
        found = self.ask("POST", f"/{self.table}/_search", {"size": 5_000})["hits"]["hits"]
        return sorted((hit["_source"] for hit in found), key=lambda each: (each["group_key"], each.get("name", "")))

    def searched(self, query: Any) -> list[str]:
        """Groups that a query finds."""
        self.ask("POST", f"/{self.table}/_refresh")
        found = self.ask("POST", f"/{self.table}/_search", {"query": query})["hits"]["hits"]
        return sorted(hit["_source"]["group_key"] for hit in found)

    def written(self) -> int:
        """Documents the server has written so far, as it counts them itself."""
        return self.ask("GET", f"/{self.table}/_stats/indexing")["_all"]["primaries"]["indexing"]["index_total"]

    def cells(self) -> dict[tuple[str, str], tuple[Any, int]]:
        """(group, name) → (value, version), whatever the shape."""
        if self.shape == "cells":
            return {(each["group_key"], each["name"]): (each.get("value"), each["version"]) for each in self.documents()}
        return {
            (each["group_key"], name): (each.get(name, each.get("other", {}).get(name)), version)
            for each in self.documents()
            for name, version in each["versions"].items()
        }
