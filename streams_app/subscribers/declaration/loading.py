"""Imports the catalogue that the setting ``events.catalogue`` names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from streams_app.errors import ConfigurationError
from streams_app.formatting import suggestion
from streams_app.importing import attribute_of
from streams_app.settings import EventsSettings, Settings
from streams_app.settings.loading import legible
from streams_app.subscribers.declaration.catalogue import Catalogue
from streams_app.subscribers.declaration.subscription import Subscription, overridden, subscriptions_of

LABEL = "events.catalogue"


def catalogue_of(settings: Settings) -> Catalogue:
    """Import the catalogue of an application.

    Raises:
        ConfigurationError: The setting is missing, the import fails, or the object is not a :class:`.Catalogue`.
    """
    return _named(settings.events)


def faults_beside(path: Path | None, environ: Mapping[str, str]) -> list[str]:
    """Return the faults of the settings sections ``[subscribers.NAME]``, to report them together with faults of other settings.

    If the catalogue cannot be imported, the faults of the import are returned instead. If no catalogue or no such section exists,
    or the file is not readable, which :meth:`Settings.load` reports, the list is empty.
    """
    events, overrides = legible(path, environ)
    if events is None or events.catalogue is None or not overrides:
        return []
    try:
        return overridden(_named(events), overrides)[1]
    except ConfigurationError as error:
        return error.faults


def _named(events: EventsSettings) -> Catalogue:
    if events.catalogue is None:
        raise ConfigurationError([f'{LABEL} is not set: name the catalogue, as in catalogue = "shop.events:catalogue"'])
    found = attribute_of(LABEL, *events.module_and_name)
    if not isinstance(found, Catalogue):
        raise ConfigurationError([f"{LABEL}: {events.catalogue} is of type {type(found).__name__}, not Catalogue"])
    return found


def subscription_named(settings: Settings, name: str) -> Subscription:
    """Return the subscriber with a given name: its declaration with the settings applied, its topics and its consumer group.

    Raises:
        ConfigurationError: There is no such subscriber, or the catalogue cannot be imported or contradicts the settings.
    """
    found = {one.subscriber.name: one for one in subscriptions_of(catalogue_of(settings), settings)}
    if name not in found:
        names = list(found)
        raise ConfigurationError([f"there is no subscriber {name!r}{suggestion(name, names)} (there are: {', '.join(names)})"])
    return found[name]
