"""Checks the schema registry: whether it answers, its schemas can be used, and the packages that decode them are installed."""

from __future__ import annotations

from collections.abc import AsyncIterator

from streams_app.envelopes import Format
from streams_app.errors import ConfigurationError
from streams_app.finding import Finding, Level
from streams_app.requirements.declarations import Declarations
from streams_app.schemas.registry import RegistryUnavailableError, registry_of


async def schema_registry_findings(declarations: Declarations) -> AsyncIterator[Finding]:
    """Check that the schema registry answers, and that the latest schema of each topic can be used.

    Yields nothing if the settings name no registry and no format needs one.
    """
    settings = declarations.settings
    sources: set[tuple[str, Format]] = {(fold.source, fold.format) for fold in settings.folds}
    sources |= {(view.source, view.format) for view in settings.live}
    sources |= {(journal.source, journal.format) for journal in settings.journals}
    sources |= {(event.topic, event.format) for event in declarations.events}
    try:
        registry = registry_of(settings, [declared for _, declared in sources])
        if registry is None:
            return
        await registry.ping()
        subjects = [f"{topic}-{part}" for topic, declared in sorted(sources) if declared != "json" for part in ("key", "value")]
        faults = [fault for subject in subjects if (fault := await registry.fault_of(subject)) is not None]
    except (ConfigurationError, RegistryUnavailableError) as error:
        yield Finding(Level.ERROR, f"schema registry: {error}")
        return
    for fault in faults:
        yield Finding(Level.ERROR, fault, "its events would wait: register a schema that can be compiled, with all that it imports")
    yield Finding(Level.OK, f"schema registry {settings.schema_registry.redacted_url} answers")
