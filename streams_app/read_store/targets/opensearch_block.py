"""The block that keeps workers from writing to the indices in use while another index takes their place.

What is written in that moment would be acknowledged by an index that nobody looks at any more. The block is a setting of the
indices, so it outlives a rebuild that is killed: beside it stands a mark, an alias ``<table>_switching`` of the index in use.
Whoever finds the mark may lift the block, and takes the mark away before; the server refuses a switch whose mark is gone.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from streams_app.read_store.databases.opensearch_client import FaultError, OpenSearchClient

PARTS: Final = ("", "-progress")
"""What the aliases end with that a store is read by."""

Action = dict[str, dict[str, Any]]
"""What is asked of ``_aliases``."""


class WriteBlock:
    """Of one store."""

    def __init__(self, client: OpenSearchClient, table: str) -> None:
        """Asks nothing yet."""
        self._client = client
        self._table = table
        self._mark = f"{table}_switching"

    async def put(self) -> None:
        """Returns when what was under way is done."""
        await self._act([{"add": {"index": index, "alias": self._mark}} for index in await self._of(self._table)])
        for part in PARTS:
            await self._client.ask("PUT", f"/{self._table}{part}/_block/write")

    async def ending(self) -> list[Action]:
        """What takes the mark away in the step of the switch, and lets that fail where the mark is gone."""
        return [_remove(index, self._mark) for index in await self._of(self._table)]

    async def remove(self) -> None:
        """Of the indices in use, whoever has put it, and the mark behind it."""
        for part in PARTS:
            try:
                await self._client.ask("PUT", f"/{self._table}{part}/_settings", {"index.blocks.write": None})
            except FaultError as error:
                if error.fault.status != HTTPStatus.NOT_FOUND:
                    raise
        await self._act([_remove(index, self._mark) for index in await self._of(self._mark)])

    async def lift(self) -> bool:
        """Removes the block if a rebuild has put it; one that is still at it switches nothing then, and has to put it again."""
        if not (marked := await self._of(self._mark)):
            return False
        # The mark moves in one step: where it is now it lets no switch through, and is found by others should we be killed here.
        actions = [_remove(index, self._mark) for index in marked]
        actions += [{"add": {"index": index, "alias": self._mark}} for index in await self._of(f"{self._table}-progress")]
        await self._act(actions)
        await self.remove()
        return True

    async def _of(self, alias: str) -> list[str]:
        """Indices behind an alias."""
        return sorted(await self._client.found(f"/_alias/{alias}") or {})

    async def _act(self, actions: list[Action]) -> None:
        if actions:
            await self._client.ask("POST", "/_aliases", {"actions": actions})


def _remove(index: str, alias: str) -> Action:
    return {"remove": {"index": index, "alias": alias, "must_exist": True}}
