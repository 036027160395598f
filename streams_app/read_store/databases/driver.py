"""Which database a URL names, and what to install where its driver is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from streams_app.errors import ConfigurationError
from streams_app.settings import ReadStoreSettings

POSTGRESQL: Final = ("postgresql://", "postgres://")
OPENSEARCH: Final = ("opensearch+", "elasticsearch+")


@contextmanager
def needing(driver: str, settings: ReadStoreSettings, package: str = "") -> Iterator[None]:
    """Says what to install where a driver is missing: ``package``, or what is called as the driver.

    Raises:
        ConfigurationError: The driver is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != driver:
            raise
        package = package or driver
        raise ConfigurationError([f"{settings.section}: {package} is not installed; pip install {package}"]) from error
