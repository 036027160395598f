"""What a read store owns in OpenSearch, and how it is made: two indices behind aliases, a template and a script.

The indices are called ``<table>-000001`` and ``<table>-progress-000001``, and everybody uses their aliases ``<table>`` and
``<table>-progress``: another index can be filled beside the first and take its place in one step. What is written to ``<table>``
goes by a further alias, ``<table>-cells`` or ``<table>-groups``, so that a worker of one shape never writes to an index of the
other. The template is for such an index, and for settings of those who run the server; once made, only its shape may change.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from streams_app.errors import ConfigurationError
from streams_app.read_store.opensearch.connection import FaultError, OpenSearchClient
from streams_app.read_store.opensearch.documents import MOST_DEPTH, PROGRESS, Shape

FIRST: Final = "000001"
ALREADY_EXISTS: Final = "resource_already_exists_exception"
_PRIORITY: Final = 200
_SECONDS: Final = 60.0
"""An index is made by the whole cluster, which takes longer than a document."""

_OWN: Final = "streams_app"
"""In the mapping of an index that a read store has made."""

_SETTINGS: Final = {"index.mapping.depth.limit": MOST_DEPTH}

PARTS: Final = ("", "-progress")
"""What the aliases end with that a store is read by."""

Action = dict[str, dict[str, Any]]
"""What is asked of ``_aliases``."""


class Indices:
    """Makes what is missing, and says what is."""

    def __init__(self, client: OpenSearchClient, table: str, shape: Shape, section: str) -> None:
        """Asks nothing yet.

        Args:
            client: The server.
            table: Setting ``table``.
            shape: What documents look like.
            section: Name of the settings, for messages.
        """
        self._client = client
        self._table = table
        self._shape = shape
        self._section = section
        self._script = f"/_scripts/{shape.script_name}"
        self._template = f"/_index_template/{table}"
        self._aliases: dict[str, Mapping[str, Any]] = {table: shape.mapping, f"{table}-progress": PROGRESS}
        self._written = write_alias(table, shape.name)

    async def missing(self) -> list[str]:
        """What is not there, or not as it should be."""
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
        """Creates what is missing; says what it did, a sentence each.

        Args:
            is_rebuild: Another index is to take the place of the one in use, which may be of another shape and stays as it is.

        Raises:
            ConfigurationError: There is an index of that name, or behind that alias, that is not of this store.
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
        """Makes an index of a part of the store, ``<table>`` or ``<table>-progress``, under an alias."""
        # The mapping is named here, too: somebody's template for all indices may stand before ours.
        aliases = [alias, write_alias(alias, self._shape.name)] if part == self._table else [alias]
        body = {"aliases": {each: {} for each in aliases}, "mappings": self._aliases[part], "settings": _SETTINGS}
        await self._client.ask("PUT", f"/{index}", body, seconds=_SECONDS)

    async def _put_once(self, what: str, path: str, body: Mapping[str, Any]) -> str:
        if await self._client.found(path) is not None:
            return f"{what} is there already"
        await self._client.ask("PUT", path, body, seconds=_SECONDS)
        return f"created {what}"

    async def reshape(self) -> list[str]:
        """Lets the template have the fields of this shape, if it has others: they would be mixed with those of a new index."""
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
        for index, told in found.items():
            if index == alias:
                raise ConfigurationError(
                    [f"{self._section}.table: there is an index {alias}; {alias} is to be an alias, so name another table"]
                )
            if wrong := _mapping_fault(mapping)(told):
                if is_rebuild and alias == self._table and _OWN in told["mappings"].get("_meta", {}):
                    return f"alias {alias} is of another shape, and stays so until another index has it"
                raise ConfigurationError([f"{self._section}.table: the index {index} behind {alias} has {wrong}"])
        if alias == self._table and await self._client.found(f"/_alias/{self._written}") is None:
            actions = [{"add": {"index": index, "alias": self._written}} for index in found]
            await self._client.ask("POST", "/_aliases", {"actions": actions})
            return f"created alias {self._written}"
        return f"alias {alias} is there already"

    async def _created_meanwhile(self, alias: str, mapping: Mapping[str, Any]) -> str:
        """Another worker has made the index in this moment, or somebody has taken its alias away."""
        if await self._client.found(f"/{alias}/_mapping") is None:
            raise ConfigurationError(
                [f"{self._section}.table: the index {alias}-{FIRST} has no alias {alias}; give it the alias, or remove it"]
            )
        return await self._made(alias, mapping, is_rebuild=False)


def write_alias(alias: str, shape: str) -> str:
    """The alias that documents of a shape are written to, beside the one that they are read by."""
    return f"{alias}-{shape}"


def _mapping_fault(mapping: Mapping[str, Any]) -> Any:
    """A function that says how the mapping of an index is not as it should be; None: it is. Further fields are welcome."""
    wanted = {name: _kind(field) for name, field in mapping["properties"].items()}
    shape = mapping.get("_meta")

    def told(index: Mapping[str, Any]) -> str | None:
        found = index["mappings"]
        kinds = {name: _kind(field) for name, field in found.get("properties", {}).items()}
        wrong = [
            f"{name} {kinds.get(name, 'missing')}, expected {kind}" for name, kind in wanted.items() if kinds.get(name) != kind
        ]
        if wrong:
            return f"other fields: {'; '.join(wrong)}"
        return None if found.get("_meta") == shape else "documents of another shape"

    return told


def _kind(field: Mapping[str, Any]) -> str:
    kind = str(field.get("type", "object"))
    return kind if field.get("enabled", True) in (True, "true") else f"{kind} without mapping"


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

    async def trial_or_commit(self) -> list[Action]:
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
