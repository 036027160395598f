"""The catalogue that ``events.catalogue`` names, imported."""

from __future__ import annotations

from streams_app.errors import ConfigurationError
from streams_app.importing import attribute_of
from streams_app.settings import Settings
from streams_app.settings.base import suggestion
from streams_app.subscribers.catalogue import Catalogue
from streams_app.subscribers.subscription import Subscription, subscriptions_of

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


def subscription_named(settings: Settings, name: str) -> Subscription:
    """The subscriber of that name.

    Raises:
        ConfigurationError: There is none; or as :func:`catalogue_of`.
    """
    found = {one.subscriber.name: one for one in subscriptions_of(catalogue_of(settings), settings)}
    if name not in found:
        names = list(found)
        raise ConfigurationError([f"there is no subscriber {name!r}{suggestion(name, names)}; there are: {', '.join(names)}"])
    return found[name]
