"""``[events]`` names the catalogue in Python; ``[subscribers.NAME]`` overrides declarations of its subscribers for a deployment."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal

from pydantic import field_validator

from streams_app.fold import FOLD_NAME
from streams_app.formatting import Duration
from streams_app.settings.base import Section

CATALOGUE: Final = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*")


class EventsSettings(Section):
    """``[events]``: the catalogue in Python, which declares the events and subscribers of the application."""

    catalogue: str | None = None
    """``module:name`` of the ``Catalogue``; modules are searched in the current directory first."""

    @field_validator("catalogue")
    @classmethod
    def _check_catalogue(cls, catalogue: str | None) -> str | None:
        if catalogue is not None and not CATALOGUE.fullmatch(catalogue):
            raise ValueError(f'{catalogue!r} is not module:name, as in "shop.events:catalogue"')
        return catalogue

    @property
    def module_and_name(self) -> tuple[str, str]:
        """Module and name of the catalogue; both are empty if no catalogue is set."""
        module, _, name = (self.catalogue or "").partition(":")
        return module, name


class SubscriberSettings(Section):
    """``[subscribers.NAME]``: settings that override the declaration of a subscriber for one deployment.

    If a setting is None, the declaration applies. ``idempotent`` cannot be overridden, because it is a property of the function's
    code.
    """

    name: str
    """Name of the subscriber, which is that of its function."""
    concurrency: int | None = None
    """Maximum number of attempts that run at the same time in each process; 1 to 1000. None, here and below: as declared."""
    rate: str | None = None
    """Maximum rate of attempts in the whole application: ``50/s``, ``100/m``, ``1000/h``."""
    timeout: Duration | None = None
    """How long an attempt may take; 10ms to 1h, at most 5m unless the function is idempotent."""
    attempts: int | None = None
    """Maximum number of attempts for one event."""
    first: Duration | None = None
    """Maximum delay after the first attempt; a due attempt begins at the next ``worker.tick`` at the latest."""
    longest: Duration | None = None
    """Maximum delay between attempts; all delays of an event together are at most 1h."""
    remember: Duration | None = None
    """How long an event id is remembered, unless the function is idempotent; 1m to 7d."""
    patience: Duration | None = None
    """How long failures do not count against an event while all attempts fail; at most 1d."""
    start: Literal["earliest", "latest"] | None = None
    """``earliest`` or ``latest``: where the subscriber begins at its first start."""
    enabled: bool | None = None
    """Whether the subscriber runs."""

    if TYPE_CHECKING:
        # For type checkers: a field accepts more types than it holds after validation.
        def __init__(
            self,
            *,
            name: str,
            concurrency: int | None = ...,
            rate: str | None = ...,
            timeout: str | timedelta | None = ...,
            attempts: int | None = ...,
            first: str | timedelta | None = ...,
            longest: str | timedelta | None = ...,
            remember: str | timedelta | None = ...,
            patience: str | timedelta | None = ...,
            start: Literal["earliest", "latest"] | None = ...,
            enabled: bool | None = ...,
        ) -> None: ...

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not FOLD_NAME.fullmatch(name):
            raise ValueError("the name of a subscriber has a-z, 0-9, _ and -, and begins with a letter or digit; at most 63")
        return name
