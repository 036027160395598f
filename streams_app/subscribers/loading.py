"""The catalogue that ``events.catalogue`` names, imported."""

from __future__ import annotations

from streams_app.errors import ConfigurationError
from streams_app.importing import attribute_of
from streams_app.settings import Settings
from streams_app.subscribers.catalogue import Catalogue

LABEL = "events.catalogue"


def catalogue_of(settings: Settings) -> Catalogue:
    """The catalogue of an application.

    Raises:
        ConfigurationError: The settings name none, it cannot be imported, or it is something else.
    """
    if settings.events.catalogue is None:
        raise ConfigurationError([f'{LABEL} is not set: name the catalogue, as in catalogue = "shop.events:catalogue"'])
    found = attribute_of(LABEL, *settings.events.place)
    if not isinstance(found, Catalogue):
        raise ConfigurationError([f"{LABEL}: {settings.events.catalogue} is of type {type(found).__name__}, not Catalogue"])
    return found
