"""Checks whether the schema registry answers, and whether the packages that decode its schemas are installed."""

from __future__ import annotations

from collections.abc import AsyncIterator

from streams_app.checking.finding import Finding, Level
from streams_app.envelopes import Format
from streams_app.errors import ConfigurationError
from streams_app.events.declaration import formats_of
from streams_app.schemas.registry import RegistryUnavailableError, registry_of
from streams_app.settings import Settings
from streams_app.subscribers.declaration.loading import catalogue_of


async def schema_registry_findings(settings: Settings) -> AsyncIterator[Finding]:
    """Check the schema registry; yield one finding. Yield nothing if the settings name no registry and no format needs one."""
    formats: list[Format] = [fold.format for fold in settings.folds]
    formats += [view.format for view in settings.live] + [journal.format for journal in settings.journals]
    if settings.events.catalogue is not None:
        try:
            formats += formats_of(catalogue_of(settings).events)
        except ConfigurationError:
            pass  # the check of subscribers reports it
    try:
        registry = registry_of(settings, formats)
        if registry is None:
            return
        await registry.ping()
    except (ConfigurationError, RegistryUnavailableError) as error:
        yield Finding(Level.ERROR, f"schema registry: {error}")
        return
    yield Finding(Level.OK, f"schema registry {settings.schema_registry.redacted_url} answers")
