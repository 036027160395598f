"""Waits while a schema registry does not answer, and logs the beginning and the end of the outage.

``registry.py`` determines what happens to events whose schema id is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from streams_app.clock import Clock
from streams_app.errors import ConfigurationError
from streams_app.health.outage_reporter import OutageReporter
from streams_app.health.status import Status
from streams_app.schemas.registry import RegistryUnavailableError, SchemaRegistry

ABOUT: Final = "schema-registry"
"""Subject of an outage in the status of the worker, and label ``cause`` of the metric ``streams_app_not_ready``."""


class PatientRegistry:
    """Schema registry whose callers wait during an outage.

    Attributes:
        registry: The registry that :meth:`prepare` queries.
    """

    def __init__(self, registry: SchemaRegistry, clock: Clock, report: Callable[[str | None], None] = lambda _: None) -> None:
        """Wrap a registry, so that callers wait while it does not answer.

        Args:
            registry: Queried by :meth:`prepare`.
            clock: Clock of the worker.
            report: Called with the text of the fault, and with None when the registry answers again.
        """
        self.registry = registry
        self._report = report
        self._outage = OutageReporter("schema registry", clock=clock)

    @property
    def is_away(self) -> bool:
        """Whether a caller is waiting for the registry."""
        return self._outage.fault is not None

    async def prepare(self, values: Iterable[bytes | None], who: Hashable) -> None:
        """Fetch the schemas that values need and that are not cached yet, and wait while :meth:`.SchemaRegistry.prepare` fails.

        Retries until the registry answers, all needed packages are installed, and all files of the settings can be read.

        Args:
            values: Keys and values of records; those without a frame are ignored.
            who: Identifies the caller among those that wait.
        """
        wanted = list(values)
        try:
            while True:
                try:
                    await self.registry.prepare(wanted)
                except (RegistryUnavailableError, ConfigurationError) as error:
                    wait_ms = self._outage.failed(error, who)
                    self._report(f"the schema registry does not answer: {error}")
                    await asyncio.sleep(wait_ms / 1000)
                else:
                    break
        except BaseException:  # also a cancellation: this caller no longer waits
            self._outage.forget(who)
            raise
        self._outage.succeeded(who)
        if self._outage.fault is None:
            self._report(None)


def report_to(status: Status) -> Callable[[str | None], None]:
    """Return a function that reports an outage of the registry in ``status``.

    If it is called with the text of a fault, the worker is not ready for this reason. If it is called with None, the reason is
    removed.
    """

    def report(fault: str | None) -> None:
        if fault is None:
            status.clear(ABOUT)
        else:
            status.set_not_ready(ABOUT, fault)

    return report
