"""Decodes entries of a journal whose values are framed by a schema registry; the journal itself stores the bytes.

Reading does not depend on the registry. While the registry does not answer, an entry has only the bytes and the error, and the
registry is asked again after :data:`PAUSE_MS`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import orjson

from streams_app.clock import Clock
from streams_app.depth import TooDeepError, check_depth
from streams_app.errors import BadEventError
from streams_app.exact_json import decode
from streams_app.journal.reading.entries import Entry
from streams_app.schemas.framing import is_framed, schema_ids
from streams_app.schemas.registry import RegistryUnavailableError, UnusableSchemaError, registry_of
from streams_app.settings import JournalSettings, Settings

PAUSE_MS: Final = 10_000
"""Time in ms after which a registry that did not answer is asked again."""


class EntryDecoder:
    """Decodes the framed values of entries of one journal; to be used on one event loop."""

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
        """Return an entry with its decoded value, or with the reason why the value cannot be decoded.

        An entry without a framed value is returned unchanged.

        Raises:
            ConfigurationError: The package that decodes schemas of this type is not installed.
        """
        registry, value = self._registry, entry.value
        if registry is None or value is None or not is_framed(value) or entry.too_large is not None:
            return entry
        try:
            if self._format != "json-schema":
                await self._fetch(value)
            decoded = decode(registry.json(value, self._format))
            check_depth(decoded)
            return replace(entry, decoded=decoded)
        except (TooDeepError, RegistryUnavailableError, UnusableSchemaError, BadEventError, orjson.JSONDecodeError) as error:
            return replace(entry, undecoded=str(error))

    async def _fetch(self, value: bytes) -> None:
        """Fetch the schema of a framed value, unless it is cached.

        Raises:
            RegistryUnavailableError: The registry does not answer, or did not answer within the last :data:`PAUSE_MS`.
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
