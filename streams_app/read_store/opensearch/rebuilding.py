"""Rebuilding in OpenSearch: one atomic request moves the aliases to other indices.

The new indices have the next number in their names; until the switch, they have the aliases of the new store. During the switch,
writes to the current indices are blocked, so that no write is acknowledged by an index that is no longer read; workers retry.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, TypeVar
from urllib.parse import quote

from streams_app.delivery.batch import TP
from streams_app.read_store.core.rebuilding import NEW_SUFFIX, OWNER, RebuildOwnership, behind
from streams_app.read_store.core.store import ReadStore
from streams_app.read_store.opensearch.connection import OpenSearchClient
from streams_app.read_store.opensearch.documents import Shape, document_id
from streams_app.read_store.opensearch.indices import PARTS, Action, Indices, WriteBlock, write_alias
from streams_app.read_store.opensearch.store import OpenSearchStore
from streams_app.settings import ReadStoreSettings

T = TypeVar("T")

SUFFIXES: Final = (*PARTS, write_alias("", "cells"), write_alias("", "groups"))
"""Suffixes of the aliases of a store."""


class OpenSearchRebuilding:
    """Creates the new indices of a rebuild in OpenSearch, and moves the aliases to them."""

    def __init__(self, declared: ReadStoreSettings, store: ReadStore) -> None:
        self._table = declared.table
        self._old, self._new = OpenSearchStore(declared), store
        self._ownership = RebuildOwnership(declared.table, store)
        self._client = OpenSearchClient(declared)
        shape = Shape(declared.shape, declared.columns)
        self._block = WriteBlock(self._client, declared.table)
        self._indices = Indices(self._client, declared.table, shape, declared.section)

    async def prepare(self) -> list[str]:
        """Also creates missing objects of the current store, and removes the write block that a killed rebuild may have left."""
        await self._indices.initialise(is_rebuild=True)
        await self._block.remove()  # a rebuild that was killed during its switch may have left it
        found = await self._indices.reshape()
        own = {f"{self._table}{NEW_SUFFIX}{suffix}" for suffix in SUFFIXES}
        # Listed before any is removed: a new index must not get the name of an index that another rebuild is about to switch to.
        numbered = {part: await self._numbered(part) for part in PARTS}
        for part, indices in numbered.items():
            used = await self._client.ask("GET", f"/_alias/{self._table}{part}")
            for index in sorted(index for index in indices.keys() - used.keys() if indices[index]["aliases"].keys() <= own):
                await self._client.ask("DELETE", f"/{index}")
                found.append(f"removed index {index}, left by an earlier rebuild")
        for part, indices in numbered.items():
            number = int(max(indices, default=f"{self._table}{part}-0").rpartition("-")[2]) + 1
            await self._indices.make(
                f"{self._table}{part}", f"{self._table}{part}-{number:06d}", f"{self._table}{NEW_SUFFIX}{part}"
            )
        await self._ownership.claim()
        return found

    async def switch(self, recreated: Collection[TP]) -> Collection[TP]:
        if await self._client.found(f"/_alias/{self._table}{NEW_SUFFIX}-progress") is None:
            self._ownership.check(None)
            await self._disown()
            return set()
        await self._block.put()
        try:
            # The actions are built first, with names of indices: if another rebuild removes one of them, the switch fails.
            actions = [action for part in PARTS for action in await self._actions(part)]
            actions += await self._block.switch_actions()
            new = await self._new.checkpoints()
            self._ownership.check(new)
            left = behind(await self._old.checkpoints(), new, recreated)
            if not left:
                self._ownership.begin_switch()
                await self._client.ask("POST", "/_aliases", {"actions": actions})
                await self._disown()
        finally:
            await self._block.remove()
        return left

    async def with_writers_paused(self, function: Callable[[], Awaitable[T]]) -> T:
        """Writes to the current indices are blocked meanwhile; a worker that is blocked for 30 s lifts the block."""
        await self._block.put()
        try:
            return await function()
        finally:
            await self._block.remove()

    async def close(self) -> None:
        await self._old.close()
        await self._client.close()

    async def _disown(self) -> None:
        """Remove the token of the rebuild after the switch. Until then, workers ignore it, because it belongs to no partition."""
        path = f"/{self._table}-progress/_doc/{quote(document_id(OWNER), safe='')}"
        if await self._client.found(path) is not None:
            await self._client.ask("DELETE", path)

    async def _numbered(self, part: str) -> dict[str, Any]:
        """Return the indices of a part of the store, each with its aliases. Other indices with the same prefix are left out."""
        found = await self._client.ask("GET", f"/{self._table}{part}-0*/_alias")
        return {index: settings for index, settings in found.items() if re.fullmatch(rf"{self._table}{part}-[0-9]{{6}}", index)}

    async def _actions(self, part: str) -> list[Action]:
        """Return actions that give the aliases of the current index to the new index, and remove those that the new index had."""
        alias, new = f"{self._table}{part}", f"{self._table}{NEW_SUFFIX}{part}"
        used, fresh = await self._client.ask("GET", f"/{alias}/_alias"), await self._client.ask("GET", f"/{new}/_alias")
        own = {f"{self._table}{suffix}" for suffix in SUFFIXES}
        remove = [(index, name) for index, settings in used.items() for name in settings["aliases"] if name in own]
        moved = [
            (index, name, name.removeprefix(f"{self._table}{NEW_SUFFIX}"))
            for index, settings in fresh.items()
            for name in settings["aliases"]
        ]
        return [
            *({"remove": {"index": index, "alias": name}} for index, name in remove),
            *({"remove": {"index": index, "alias": name}} for index, name, _ in moved),
            *({"add": {"index": index, "alias": f"{self._table}{suffix}"}} for index, _, suffix in moved),
        ]
