"""Decodes the entries of a journal whose values are framed by a schema registry; the journal itself stores the bytes.

Reading does not depend on the registry: while it is unavailable, entries have only the bytes and the error. The next request to the
registry is made after some seconds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import orjson

from streams_app.clock import Clock
from streams_app.errors import BadEventError
from streams_app.journal.reading.entries import Entry
from streams_app.schemas.framing import is_framed, schema_ids
from streams_app.schemas.registry import RegistryUnavailableError, registry_of
from streams_app.settings import JournalSettings, Settings

PAUSE_MS: Final = 10_000
"""Time between requests to a registry that does not answer."""


class EntryDecoder:
    """Decodes the entries of one journal; to be used on one event loop."""

    def __init__(self, settings: Settings, journal: JournalSettings, clock: Clock) -> None:
        """Create a decoder, without connecting.

        Raises:
            ConfigurationError: The package of the format is not installed, or it needs a schema registry that is not configured.
        """
        self._format = journal.format
        self._registry = None if journal.format == "json" else registry_of(settings, [journal.format], clock)
        self._clock = clock
        self._fault = ""
        self._asked_ms = 0

    async def decoded(self, entry: Entry) -> Entry:
        """Add to an entry its decoded value, or why it cannot be decoded; return an entry without a framed value unchanged.

        Raises:
            ConfigurationError: The package that its schema needs is not installed.
        """
        registry, value = self._registry, entry.value
        if registry is None or value is None or not is_framed(value) or entry.too_large is not None:
            return entry
        try:
            if self._format != "json-schema":
                await self._fetch(value)
            return replace(entry, decoded=orjson.loads(registry.json(value, self._format)))
        except (RegistryUnavailableError, BadEventError, orjson.JSONDecodeError) as error:
            return replace(entry, undecoded=str(error))

    async def _fetch(self, value: bytes) -> None:
        """Fetch the schema of a framed value from the registry, unless it is cached.

        Raises:
            RegistryUnavailableError: The registry does not answer, or did not within the last :data:`PAUSE_MS`.
        """
        assert self._registry is not None  # checked by the caller
        now_ms = self._clock.monotonic_ms()
        if self._fault and now_ms - self._asked_ms < PAUSE_MS and self._registry.missing(schema_ids((value,))):
            raise RegistryUnavailableError(self._fault)
        try:
            await self._registry.prepare((value,))
        except RegistryUnavailableError as error:
            self._fault, self._asked_ms = str(error), self._clock.monotonic_ms()
            raise
        self._fault = ""
