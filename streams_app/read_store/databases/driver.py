"""Which database a URL names, and what to install where its driver is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from streams_app.errors import ConfigurationError
from streams_app.settings import ReadStoreSettings

POSTGRESQL: Final = ("postgresql://", "postgres://")


@contextmanager
def needing(driver: str, settings: ReadStoreSettings) -> Iterator[None]:
    """Says what to install where a driver is missing.

    Raises:
        ConfigurationError: The driver is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != driver:
            raise
        raise ConfigurationError([f"{settings.section}: {driver} is not installed; pip install {driver}"]) from error
