"""Waits while a schema registry does not answer or has a schema that cannot be used; logs the beginning and the end of the wait.

``registry.py`` determines what happens to events whose schema id is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Final

from streams_app.clock import Clock
from streams_app.envelopes import Format
from streams_app.errors import ConfigurationError
from streams_app.health.outage_reporter import OutageReporter
from streams_app.health.status import Status
from streams_app.retries import retried
from streams_app.schemas.registry import RegistryUnavailableError, SchemaRegistry, UnusableSchemaError, registry_of
from streams_app.settings import Settings

ABOUT: Final = "schema-registry"
"""Subject of an outage in the status of the worker, and label ``cause`` of the metric ``streams_app_not_ready``."""


class PatientRegistry:
    """Schema registry whose callers wait while it does not answer, or has a schema that cannot be used."""

    def __init__(
        self,
        registry: SchemaRegistry,
        clock: Clock,
        report: Callable[[str | None], None] = lambda _: None,
        *,
        reports_outages: bool = True,
    ) -> None:
        """Wrap a registry.

        Args:
            report: Called with the text of the fault, and with None when no caller waits any more.
            reports_outages: Whether ``report`` is also called if the registry does not answer, not only about a schema.
        """
        self.registry = registry
        self._clock = clock
        self._report = report
        self._reports_outages = reports_outages
        self._outage = OutageReporter("schema registry", clock=clock)
        self._unusable: dict[int, OutageReporter] = {}

    @property
    def is_away(self) -> bool:
        """Whether a caller is waiting for the registry, or for a schema that can be used."""
        return self._outage.fault is not None or bool(self._unusable)

    async def prepare(self, values: Iterable[bytes | None], who: Hashable) -> None:
        """Fetch the schemas that values need and that are not cached yet, and wait while :meth:`.SchemaRegistry.prepare` fails.

        ``who`` identifies the caller among those that wait.
        """
        wanted = list(values)

        async def reported(error: Exception) -> float:
            if isinstance(error, UnusableSchemaError):
                return self._schema_failed(error, who) / 1000
            wait_ms = self._outage.failed(error, who)
            if self._reports_outages:
                self._report(f"the schema registry does not answer: {error}")
            return wait_ms / 1000

        try:
            await retried(lambda: self.registry.prepare(wanted), (RegistryUnavailableError, ConfigurationError), reported)
        except BaseException:  # also a cancellation: this caller no longer waits
            self._outage.forget(who)
            self._no_longer_waits(who)
            raise
        self._outage.succeeded(who)
        self._no_longer_waits(who)

    def _schema_failed(self, error: UnusableSchemaError, who: Hashable) -> int:
        """Report a schema that cannot be used; return the time in ms for which the caller has to wait."""
        self._outage.succeeded(who)
        self._no_longer_waits(who, schema_id=error.schema_id)
        if error.schema_id not in self._unusable:
            self._unusable[error.schema_id] = OutageReporter(f"schema {error.schema_id}", clock=self._clock)
        self._report(f"{error}; its events wait, they are no dead letters")
        return self._unusable[error.schema_id].failed(error, who)

    def _no_longer_waits(self, who: Hashable, schema_id: int | None = None) -> None:
        """Remove a caller from those that wait for a schema, except ``schema_id``; report if no caller waits any more."""
        for number, outage in list(self._unusable.items()):
            if number != schema_id:
                outage.succeeded(who)
                if outage.fault is None:
                    del self._unusable[number]
        if not self.is_away and schema_id is None:
            self._report(None)


def patient_registry(
    settings: Settings, formats: Collection[Format], clock: Clock, status: Status, component: str = ""
) -> PatientRegistry | None:
    """Create the registry of an application, which reports in ``status``; None if the settings name no registry.

    The worker is not ready while a schema cannot be used and, if folds wait, while the registry does not answer.

    Args:
        component: What waits besides folds, such as ``live views``; "" for folds.

    Raises:
        ConfigurationError: See :func:`.registry_of`.
    """
    registry = registry_of(settings, formats, clock)
    about = f"{ABOUT}:{component}" if component else ABOUT

    def report(fault: str | None) -> None:
        if fault is None:
            status.clear(about)
        else:
            status.set_not_ready(about, fault)

    return None if registry is None else PatientRegistry(registry, clock, report, reports_outages=not component)
