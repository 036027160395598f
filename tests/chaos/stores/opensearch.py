"""A store in OpenSearch under faults: it is frozen, or treats its disk as full and makes its indices read-only."""

from __future__ import annotations

from typing import Any, Final

from streams_app.embedded.ports import LOOPBACK
from tests.chaos.run import Duration
from tests.chaos.stores.faults import server_frozen, server_killed, worker_killed
from tests.chaos.stores.run import Cells, StoreRun
from tests.helpers.read_store.searching import asked
from tests.helpers.waiting import wait_until
from tests.servers.opensearch import OpenSearch

WATERMARK: Final = "cluster.routing.allocation.disk.watermark"
LEVELS: Final = ("low", "high", "flood_stage")
CHECK_INTERVAL: Final = "10s"
"""The shortest interval at which the server checks its disk."""
PAGE: Final = 2_000
LIMIT_SECONDS: Final = 60


class OpenSearchRun(StoreRun):
    """A run with OpenSearch; its disk limits are changed instead of the free space."""

    full = Duration(1, 40.0)
    share = Duration(1, 20.0, ("server-killed", "worker-killed"))
    max_records = 200

    async def start(self) -> str:
        levels = [f"{WATERMARK}.{level}=1b" for level in LEVELS]
        checking = ["cluster.routing.allocation.disk.threshold_enabled=true", f"cluster.info.update.interval={CHECK_INTERVAL}"]
        self.server = OpenSearch.start(settings=(*checking, *levels))
        return f"opensearch+http://{LOOPBACK}:{self.server.port}"

    def stop(self) -> None:
        self.server.stop()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request of another client to the server."""
        return asked(self.server.port, method, path, body)

    async def stored(self) -> Cells:
        self.ask("POST", "/folded_values/_refresh")
        found: Cells = {}
        body: dict[str, Any] = {"size": PAGE, "sort": ["group_key", "name"] if self.shape == "cells" else ["group_key"]}
        while hits := await self._hits(body):
            body["search_after"] = hits[-1]["sort"]
            for each in (hit["_source"] for hit in hits):
                versions = each["versions"] if self.shape == "groups" else {each["name"]: each["version"]}
                for name, version in versions.items():
                    found[each["group_key"], name] = version, each[name if self.shape == "groups" else "value"]
        return found

    async def _hits(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Return a page of hits; repeat the request if the server has just started, or has no memory for a search."""
        response: dict[str, Any] = {}

        def is_answered() -> bool:
            nonlocal response
            response = self.ask("POST", "/folded_values/_search?allow_partial_search_results=false", body)
            return "hits" in response

        try:
            await wait_until(is_answered, LIMIT_SECONDS, "the server answers a search")
        except AssertionError as error:
            raise AssertionError(f"{error}: {response}") from error
        hits: list[dict[str, Any]] = response["hits"]["hits"]
        return hits


class OpenSearchGroupsRun(OpenSearchRun):
    """A run with one document for each group."""

    shape = "groups"


async def disk_full(run: OpenSearchRun) -> None:
    """Make the server treat its disk as full for a while: its indices are read-only until it checks its disk again."""
    before = run.logs().count("flood-stage")
    run.ask("PUT", "/_cluster/settings", {"transient": {f"{WATERMARK}.{level}": "1000000gb" for level in LEVELS}})
    try:
        await wait_until(lambda: run.logs().count("flood-stage") > before, LIMIT_SECONDS, "a worker reports the full disk")
    finally:
        run.ask("PUT", "/_cluster/settings", {"transient": {f"{WATERMARK}.{level}": None for level in LEVELS}})
    await wait_until(
        lambda: "read_only" not in str(run.ask("GET", "/_all/_settings")), LIMIT_SECONDS, "the server has checked its disk again"
    )


OpenSearchRun.faults_of = {
    "worker-killed": worker_killed,
    "server-killed": server_killed,
    "server-frozen": server_frozen,
    "disk-full": disk_full,
}
