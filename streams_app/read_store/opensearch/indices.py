"""The objects of a read store in OpenSearch: two indices behind aliases, a template, a script, and the write block of a rebuild.

The indices are called ``<table>-000001`` and ``<table>-progress-000001``. Stores read them through the aliases ``<table>`` and
``<table>-progress``, so that another index can be filled, and then replace the first one in one step. Writes to ``<table>`` use a
further alias, ``<table>-cells`` or ``<table>-groups``, so that a worker of one shape never writes to an index of the other shape.
Each later index gets its settings and fields from the template. If the shape changes, a rebuild replaces the fields in the
template, and keeps the settings that users have added to it.

The write block prevents workers from writing to the current indices while other indices replace them. Otherwise a write might be
acknowledged by an index that is no longer read. The block is a setting of the indices, so it remains if the rebuild is killed.
Therefore the rebuild also gives the current index the alias ``<table>_switching``. A worker that finds this alias may lift the
block. It first removes the alias from the index, and the server rejects the switch of a rebuild whose alias is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from streams_app.errors import ConfigurationError
from streams_app.read_store.opensearch.connection import FaultError, OpenSearchClient
from streams_app.read_store.opensearch.documents import CHECKPOINTS, MAX_DEPTH, Shape

FIRST: Final = "000001"
ALREADY_EXISTS: Final = "resource_already_exists_exception"
_PRIORITY: Final = 200
_SECONDS: Final = 60.0
"""Time limit for creating an index, in seconds. It is long, because the whole cluster takes part."""

_OWN: Final = "streams_app"
"""Key in the metadata of a mapping. If an index has it, a read store has created the index."""

_SETTINGS: Final = {"index.mapping.depth.limit": MAX_DEPTH}

PARTS: Final = ("", "-progress")
"""Suffixes of the aliases through which a store is read."""

Action = dict[str, dict[str, Any]]
"""An action of a request to ``_aliases``: it adds an alias to an index, or removes one."""


class Indices:
    """Creates the script, template, indices and aliases of a store, and lists those that are missing."""

    def __init__(self, client: OpenSearchClient, table: str, shape: Shape, section: str) -> None:
        self._client = client
        self._table = table
        self._shape = shape
        self._section = section
        self._script = f"/_scripts/{shape.script_name}"
        self._template = f"/_index_template/{table}"
        self._aliases: dict[str, Mapping[str, Any]] = {table: shape.mapping, f"{table}-progress": CHECKPOINTS}
        self._written = write_alias(table, shape.name)

    async def missing(self) -> list[str]:
        """List the script, the template and the aliases that are missing, and aliases of an index that does not fit the store."""
        things = [f"script {self._shape.script_name}"] if await self._client.found(self._script) is None else []
        if await self._client.found(self._template) is None:
            things.append(f"index template {self._table}")
        for alias, mapping in self._aliases.items():
            found = await self._client.found(f"/{alias}/_mapping")
            if found is None or alias in found or any(map(_mapping_fault(mapping), found.values())):
                things.append(f"alias {alias}")
        if await self._client.found(f"/_alias/{self._written}") is None:
            things.append(f"alias {self._written}")
        return things

    async def initialise(self, *, is_rebuild: bool = False) -> list[str]:
        """Create missing objects; return a sentence for each object, also for existing ones.

        Args:
            is_rebuild: Whether a rebuild will replace the current index. The current index may then have another shape, and stays
                unchanged.
        """
        template = {
            "index_patterns": [f"{self._table}-0*"], "priority": _PRIORITY,
            "template": {"settings": _SETTINGS, "mappings": self._shape.mapping},
        }  # fmt: skip
        script = {"script": {"lang": "painless", "source": self._shape.script}}
        done = [
            await self._put_once(f"script {self._shape.script_name}", self._script, script),
            await self._put_once(f"index template {self._table}", self._template, template),
        ]
        for alias, mapping in self._aliases.items():
            done.append(await self._made(alias, mapping, is_rebuild=is_rebuild))
        return done

    async def make(self, part: str, index: str, alias: str) -> None:
        """Create an index for a part of the store, with an alias.

        Args:
            part: ``<table>`` for the values, or ``<table>-progress`` for the checkpoints.
            alias: Alias for reading. An index of ``<table>`` also gets the alias for writing.
        """
        # The mapping is repeated here, because a user's template for all indices may have priority over ours.
        aliases = [alias, write_alias(alias, self._shape.name)] if part == self._table else [alias]
        body = {"aliases": {each: {} for each in aliases}, "mappings": self._aliases[part], "settings": _SETTINGS}
        await self._client.ask("PUT", f"/{index}", body, seconds=_SECONDS)

    async def _put_once(self, what: str, path: str, body: Mapping[str, Any]) -> str:
        if await self._client.found(path) is not None:
            return f"{what} already exists"
        await self._client.ask("PUT", path, body, seconds=_SECONDS)
        return f"created {what}"

    async def reshape(self) -> list[str]:
        """If the template has the fields of another shape, replace them and say so: the new index must not have fields of both."""
        (found,) = (await self._client.ask("GET", self._template))["index_templates"]
        template = found["index_template"]
        mapping = self._shape.mapping
        if template["template"].get("mappings", {}).get("_meta") == mapping["_meta"]:
            return []
        template["template"]["mappings"] = mapping
        await self._client.ask("PUT", self._template, template, seconds=_SECONDS)
        return [f"index template {self._table} has the fields of shape {self._shape.name} from now on"]

    async def _made(self, alias: str, mapping: Mapping[str, Any], *, is_rebuild: bool) -> str:
        found = await self._client.found(f"/{alias}/_mapping")
        if found is None:
            try:
                await self.make(alias, f"{alias}-{FIRST}", alias)
            except FaultError as error:
                if error.fault.kind != ALREADY_EXISTS:
                    raise
                return await self._created_meanwhile(alias, mapping)
            return f"created alias {alias} of index {alias}-{FIRST}"
        for index, settings in found.items():
            if index == alias:
                raise ConfigurationError(
                    [f"{self._section}.table: there is an index {alias}; {alias} is to be an alias, so name another table"]
                )
            if wrong := _mapping_fault(mapping)(settings):
                if is_rebuild and alias == self._table and _OWN in settings["mappings"].get("_meta", {}):
                    return f"alias {alias} is of another shape, and stays so until another index has it"
                raise ConfigurationError([f"{self._section}.table: the index {index} behind {alias} has {wrong}"])
        if alias == self._table and await self._client.found(f"/_alias/{self._written}") is None:
            actions = [{"add": {"index": index, "alias": self._written}} for index in found]
            await self._client.ask("POST", "/_aliases", {"actions": actions})
            return f"created alias {self._written}"
        return f"alias {alias} already exists"

    async def _created_meanwhile(self, alias: str, mapping: Mapping[str, Any]) -> str:
        """Check again an alias that was missing although its index exists; return a sentence about the alias.

        If the alias exists now, another worker has just created both.
        """
        if await self._client.found(f"/{alias}/_mapping") is None:
            raise ConfigurationError(
                [f"{self._section}.table: the index {alias}-{FIRST} has no alias {alias}; give it the alias, or remove it"]
            )
        return await self._made(alias, mapping, is_rebuild=False)


def write_alias(alias: str, shape: str) -> str:
    """Return the alias through which documents of a shape are written; ``alias`` is the one through which they are read."""
    return f"{alias}-{shape}"


def _mapping_fault(mapping: Mapping[str, Any]) -> Any:
    """Return a function that checks the mapping of an index. It returns what is wrong, or None; additional fields are accepted."""
    wanted = {name: _kind(field) for name, field in mapping["properties"].items()}
    shape = mapping.get("_meta")

    def fault_of(index: Mapping[str, Any]) -> str | None:
        found = index["mappings"]
        kinds = {name: _kind(field) for name, field in found.get("properties", {}).items()}
        wrong = [
            f"{name} {kinds.get(name, 'missing')}, expected {kind}" for name, kind in wanted.items() if kinds.get(name) != kind
        ]
        if wrong:
            return f"other fields: {'; '.join(wrong)}"
        return None if found.get("_meta") == shape else "documents of another shape"

    return fault_of


def _kind(field: Mapping[str, Any]) -> str:
    kind = str(field.get("type", "object"))
    return kind if field.get("enabled", True) in (True, "true") else f"{kind} without mapping"


class WriteBlock:
    """Blocks writes to the indices of one store during the switch of a rebuild."""

    def __init__(self, client: OpenSearchClient, table: str) -> None:
        self._client = client
        self._table = table
        self._switching_alias = f"{table}_switching"

    async def put(self) -> None:
        """Add the alias ``<table>_switching`` and block writes; return once running writes are done."""
        await self._act([{"add": {"index": index, "alias": self._switching_alias}} for index in await self._of(self._table)])
        for part in PARTS:
            await self._client.ask("PUT", f"/{self._table}{part}/_block/write")

    async def switch_actions(self) -> list[Action]:
        """Return actions that remove the alias ``<table>_switching``. A switch that includes them fails if the alias is gone."""
        return [_remove(index, self._switching_alias) for index in await self._of(self._table)]

    async def remove(self) -> None:
        """Remove the block from the current indices, whoever has set it, and then remove the alias ``<table>_switching``."""
        for part in PARTS:
            try:
                await self._client.ask("PUT", f"/{self._table}{part}/_settings", {"index.blocks.write": None})
            except FaultError as error:
                if error.fault.status != HTTPStatus.NOT_FOUND:
                    raise
        await self._act([_remove(index, self._switching_alias) for index in await self._of(self._switching_alias)])

    async def lift(self) -> bool:
        """Remove the write block of a rebuild that may have been killed; return False if no rebuild has set one.

        If the rebuild is still running, the server rejects its switch to the new indices until it has blocked writes again.
        """
        if not (marked := await self._of(self._switching_alias)):
            return False
        # One request moves the alias to another index. The switch then fails, and if this process is killed here, other workers
        # still find the alias and lift the block.
        actions = [_remove(index, self._switching_alias) for index in marked]
        actions += [
            {"add": {"index": index, "alias": self._switching_alias}} for index in await self._of(f"{self._table}-progress")
        ]
        await self._act(actions)
        await self.remove()
        return True

    async def _of(self, alias: str) -> list[str]:
        """Return the indices behind an alias."""
        return sorted(await self._client.found(f"/_alias/{alias}") or {})

    async def _act(self, actions: list[Action]) -> None:
        if actions:
            await self._client.ask("POST", "/_aliases", {"actions": actions})


def _remove(index: str, alias: str) -> Action:
    return {"remove": {"index": index, "alias": alias, "must_exist": True}}
