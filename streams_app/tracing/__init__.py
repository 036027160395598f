"""Tracing with OpenTelemetry, an optional package that is imported only if ``tracing.enabled`` is set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streams_app.errors import ConfigurationError
from streams_app.settings import Settings

if TYPE_CHECKING:
    from streams_app.tracing.spans import Tracing

NOT_INSTALLED: Final = "tracing.enabled: opentelemetry-api is not installed; pip install 'streams_app[otel]'"


def tracing_of(settings: Settings) -> Tracing | None:
    """Return the :class:`.Tracing` that starts spans; None if tracing is off."""
    if not settings.tracing.enabled:
        return None
    try:
        from streams_app.tracing.spans import Tracing  # needs the optional package
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise ConfigurationError([NOT_INSTALLED]) from error
    return Tracing()
