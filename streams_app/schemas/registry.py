"""Fetches schemas from a registry with the REST interface of Confluent; each is fetched once and cached.

If the registry does not answer, :class:`RegistryUnavailableError` is raised, and the reader that needs the schema waits; likewise
if a schema cannot be used (:class:`UnusableSchemaError`). If the registry has no such schema, events with this schema become dead
letters. The registry is queried again after half a minute, because the schema may be registered or repaired later.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Collection, Iterable
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import aiohttp
import orjson

from streams_app.clock import Clock, SystemClock
from streams_app.envelopes import Format
from streams_app.errors import ConfigurationError, TryAgainError, text_of
from streams_app.schemas.cache import SchemaCache, SchemaEntry
from streams_app.schemas.framing import schema_ids
from streams_app.schemas.schema import TYPES, Schema, SchemaDefinition, parsed, require_package
from streams_app.settings import SchemaRegistrySettings, Settings

ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"
ASKED_ANEW_MS: Final = 30_000
"""Time after which the registry is queried again for a schema that was missing or could not be used."""
LATEST_MS: Final = 60_000
"""Time for which the latest schema of a subject is cached for publishing."""
MAX_REFERENCES: Final = 200
MAX_BYTES: Final = 5_000_000
MAX_SUBJECTS: Final = 3
"""Maximum number of subjects that a message names."""
NOT_FOUND: Final = (40401, 40402, 40403)
"""Error codes of the registry for a subject, a version or a schema that does not exist."""


class RegistryUnavailableError(TryAgainError):
    """The registry does not answer, or denies access."""


class UnusableSchemaError(ConfigurationError):
    """The registry has a schema, but it cannot be parsed or compiled; that is no fault of the events with this schema."""

    def __init__(self, schema_id: int, fault: str) -> None:
        super().__init__([fault])
        self.schema_id = schema_id


class UnknownSchemaError(Exception):
    """The registry has no such schema, subject or version."""


class LatestSchema(NamedTuple):
    """The latest schema of a registry subject, for encoding.

    Attributes:
        asked_ms: Time of the last query, even if it failed, in ms of the monotonic clock.
    """

    id: int
    type: str
    schema: Schema
    asked_ms: int


class SchemaRegistry(SchemaCache):
    """Client of one schema registry, with a cache of its schemas. Use it in one event loop only. ``settings.url`` must be set."""

    def __init__(self, settings: SchemaRegistrySettings, clock: Clock | None = None) -> None:
        super().__init__(settings.cache_size)
        self._settings = settings
        self._clock = clock or SystemClock()
        self._lock = asyncio.Lock()
        self._unknown: dict[int, int] = {}
        self._unusable: dict[int, tuple[int, UnusableSchemaError]] = {}
        self._latest: dict[str, LatestSchema] = {}

    async def prepare(self, values: Iterable[bytes | None]) -> None:
        """Fetch the schemas that values need and that are not cached yet; values without a frame need none.

        Decode the values before the next ``await``, because another task may then displace the schemas from the cache. The errors
        are those of :meth:`fetch`.
        """
        if ids := schema_ids(values):
            await self.fetch(ids)

    async def fetch(self, ids: Collection[int]) -> None:
        """Fetch the schemas with these ids that are not cached.

        A schema that was missing or could not be used is fetched again after :data:`ASKED_ANEW_MS`.

        Raises:
            RegistryUnavailableError: The registry does not answer.
            UnusableSchemaError: One of the schemas is not valid, or of a type that is not supported.
            ConfigurationError: A package that is needed to decode is not installed, or a file of the settings cannot be read.
        """
        now_ms = self._clock.monotonic_ms()
        for number in ids:
            if now_ms - self._unknown.get(number, now_ms) > ASKED_ANEW_MS:
                self.forget(number)
        while self.missing(ids):
            async with self._lock:
                for number in self.missing(ids):
                    entry = await self._entry(number)
                    self._unknown.pop(number, None)
                    if entry.schema is None:
                        self._unknown[number] = self._clock.monotonic_ms()
                    self.keep(number, entry, wanted=ids)

    async def _entry(self, number: int) -> SchemaEntry:
        """Fetch a schema. If it cannot be used, remember that for :data:`ASKED_ANEW_MS`, because compiling it may take long."""
        asked_ms, fault = self._unusable.get(number, (0, None))
        if fault is not None and self._clock.monotonic_ms() - asked_ms <= ASKED_ANEW_MS:
            raise UnusableSchemaError(number, str(fault))
        try:
            entry = await self._fetched(number)
        except UnusableSchemaError as error:
            self._unusable[number] = self._clock.monotonic_ms(), error
            raise
        self._unusable.pop(number, None)
        return entry

    async def latest(self, subject: str, declared: Format) -> LatestSchema:
        """Return the latest schema of a subject, for publishing.

        The schema is cached for :data:`LATEST_MS`. During an outage, the last one that was fetched is returned.

        Raises:
            RegistryUnavailableError: The registry does not answer, and the subject was never fetched.
            ConfigurationError: The registry has no such subject, or the schema of the subject is of another type than ``declared``
                or cannot be used.
        """
        found = self._latest.get(subject)
        now_ms = self._clock.monotonic_ms()
        if found is not None and now_ms - found.asked_ms < LATEST_MS:
            return found
        try:
            async with self._session() as session:
                answer = await self._get(session, f"subjects/{quote(subject, safe='')}/versions/latest")
                definition = await self._definition(session, answer)
        except UnknownSchemaError as error:
            raise ConfigurationError([f"the schema registry has no subject {subject!r}: register its schema first"]) from error
        except RegistryUnavailableError:
            if found is None:
                raise
            self._latest[subject] = found = found._replace(asked_ms=now_ms)
            return found
        if definition.type != TYPES[declared]:
            raise ConfigurationError([f"the schema of {subject!r} is of type {definition.type}, and the format is {declared}"])
        schema = await self._parsed(f"the schema of {subject!r}", definition)
        if isinstance(schema, str):
            raise ConfigurationError([schema])
        self._latest[subject] = latest = LatestSchema(int(answer["id"]), definition.type, schema, now_ms)
        return latest

    async def ping(self) -> None:
        """Check that the registry answers, with a query for its subjects.

        Raises:
            RegistryUnavailableError: The registry does not answer or denies access, or the server is not a schema registry.
        """
        try:
            async with self._session() as session:
                await self._get(session, "subjects")
        except UnknownSchemaError as error:
            raise RegistryUnavailableError(f"{self._settings.redacted_url} is not a schema registry: {error}") from error

    async def _fetched(self, number: int) -> SchemaEntry:
        try:
            async with self._session() as session:
                definition = await self._definition(session, await self._get(session, f"schemas/ids/{number}"))
        except UnknownSchemaError as error:
            return SchemaEntry("", None, "unknown-schema", f"the registry has no schema {number}: {error}")
        schema = await self._parsed(f"schema {number}", definition)
        if isinstance(schema, str):
            raise UnusableSchemaError(number, schema + await self._subjects(number))
        return SchemaEntry(definition.type, schema)

    async def _subjects(self, number: int) -> str:
        """Return, for a message, the subjects that use a schema; empty if the registry does not say so."""
        try:
            async with self._session() as session:
                versions = await self._get(session, f"schemas/ids/{number}/versions")
            names = sorted({f"{one['subject']} version {one['version']}" for one in versions})
        except (UnknownSchemaError, RegistryUnavailableError, TypeError, KeyError):
            return ""
        return f" (subject {', '.join(names[:MAX_SUBJECTS])}{', …' if len(names) > MAX_SUBJECTS else ''})" if names else ""

    async def fault_of(self, subject: str) -> str | None:
        """Return why the latest schema of a subject cannot be used; None if it can be, or there is no such subject.

        The errors are those of :meth:`fetch`, except for schemas that are not valid.
        """
        try:
            async with self._session() as session:
                definition = await self._definition(
                    session, await self._get(session, f"subjects/{quote(subject, safe='')}/versions/latest")
                )
        except UnknownSchemaError:
            return None
        schema = await self._parsed(f"the schema of {subject!r}", definition)
        return schema if isinstance(schema, str) else None

    @staticmethod
    async def _parsed(what: str, definition: SchemaDefinition) -> Schema | str:
        """Parse a schema in a thread; if it is not valid, return the fault as text."""
        try:
            return await asyncio.to_thread(parsed, definition)
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001  # libraries raise many types for an invalid schema
            words = str(error) if isinstance(error, ValueError) and str(error) else text_of(error)
            return f"{what} cannot be used: {words}"

    async def _definition(self, session: aiohttp.ClientSession, answer: Any) -> SchemaDefinition:
        """Return the schema in an answer of the registry; first fetch all schemas that it refers to."""
        references: dict[str, str] = {}
        await self._add_references(session, answer, references, set())
        return SchemaDefinition(str(answer.get("schemaType") or "AVRO"), str(answer["schema"]), references)

    async def _add_references(self, session: aiohttp.ClientSession, answer: Any, found: dict[str, str], seen: set[str]) -> None:
        for reference in answer.get("references") or ():
            name = str(reference["name"])
            if name in seen:
                continue
            seen.add(name)
            if len(seen) > MAX_REFERENCES:
                raise UnknownSchemaError(f"it refers to more than {MAX_REFERENCES} schemas")
            path = f"subjects/{quote(str(reference['subject']), safe='')}/versions/{int(reference['version'])}"
            inner = await self._get(session, path)
            await self._add_references(session, inner, found, seen)
            found[name] = str(inner["schema"])

    def _session(self) -> aiohttp.ClientSession:
        """Create a session for one fetch; fetches are rare, so connections are not reused."""
        settings = self._settings
        headers = {"Accept": ACCEPT}
        if settings.username is not None:
            credentials = base64.b64encode(f"{settings.username}:{settings.password}".encode()).decode()
            headers["Authorization"] = f"Basic {credentials}"
        context: ssl.SSLContext | bool = True
        if settings.ssl_cafile is not None:
            try:
                context = ssl.create_default_context(cafile=str(settings.ssl_cafile))
            except OSError as error:
                raise ConfigurationError([f"schema_registry.ssl_cafile: cannot read {settings.ssl_cafile}: {error}"]) from error
        return aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=settings.timeout.total_seconds()),
            connector=aiohttp.TCPConnector(ssl=context),
        )

    async def _get(self, session: aiohttp.ClientSession, path: str) -> Any:
        url = f"{(self._settings.url or '').rstrip('/')}/{path}"
        try:
            async with session.get(url) as response:
                status, content = response.status, await response.content.read(MAX_BYTES)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise RegistryUnavailableError(f"{self._settings.redacted_url}: {text_of(error)}") from error
        try:
            answer = orjson.loads(content)
        except orjson.JSONDecodeError:
            answer = None
        if status == HTTPStatus.OK and isinstance(answer, dict | list):
            return answer
        code, message = (answer.get("error_code"), str(answer.get("message"))[:200]) if isinstance(answer, dict) else (None, "")
        if status == HTTPStatus.NOT_FOUND and code in NOT_FOUND:
            raise UnknownSchemaError(message)
        raise RegistryUnavailableError(f"{self._settings.redacted_url} answers {status} {message}".strip())


def registry_of(settings: Settings, formats: Collection[Format], clock: Clock | None = None) -> SchemaRegistry | None:
    """Create the registry client of an application; None if the settings name no registry.

    Raises:
        ConfigurationError: A format needs a registry but the settings name none, or a package that a format needs is not installed.
    """
    needed = [format_ for format_ in formats if format_ in TYPES]
    if needed and settings.schema_registry.url is None:
        raise ConfigurationError([f'schema_registry.url: format = "{needed[0]}" needs a schema registry'])
    for format_ in needed:
        require_package(TYPES[format_])
    return None if settings.schema_registry.url is None else SchemaRegistry(settings.schema_registry, clock)
