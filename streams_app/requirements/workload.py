"""A workload: what a worker runs, or what the settings declare. The required topics and rights are derived from it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from streams_app.events.declaration import Event
from streams_app.fold import Fold
from streams_app.settings import JournalSettings, LiveView, ReadStoreSettings, Settings
from streams_app.subscribers.declaration.loading import catalogue_of
from streams_app.subscribers.declaration.subscription import Subscription, subscriptions_of


class Workload(NamedTuple):
    """Folds, read stores, subscribers, live views and journals of an application.

    Attributes:
        events: Events that subscribers may receive or publish.
    """

    settings: Settings
    folds: Sequence[Fold] = ()
    stores: Sequence[ReadStoreSettings] = ()
    views: Sequence[LiveView] = ()
    journals: Sequence[JournalSettings] = ()
    events: Sequence[Event[Any, Any]] = ()
    subscriptions: Sequence[Subscription] = ()

    def with_subscribers(self, names: Collection[str] | None = None) -> Workload:
        """Return a copy of this workload with all events of the catalogue, and with enabled subscribers.

        If the settings name no catalogue, return the workload unchanged.

        Args:
            names: Names of the subscribers; None: all enabled ones.
        """
        if self.settings.events.catalogue is None:
            return self
        enabled = enabled_subscriptions(self.settings)
        return self._replace(
            events=catalogue_of(self.settings).events,
            subscriptions=[one for one in enabled if names is None or one.subscriber.name in names],
        )


def without_subscribers(settings: Settings) -> Workload:
    """Return a workload with the folds, read stores and journals of the settings, and with their live views of topics."""
    return Workload(settings, settings.folds, settings.read_stores, settings.live_of_topics, settings.journals)


def declared(settings: Settings) -> Workload:
    """Return a workload with all that the settings and the user's catalogue declare, including subscribers that are not enabled."""
    if settings.events.catalogue is None:
        return without_subscribers(settings)
    catalogue = catalogue_of(settings)
    return without_subscribers(settings)._replace(events=catalogue.events, subscriptions=subscriptions_of(catalogue, settings))


def enabled_subscriptions(settings: Settings) -> list[Subscription]:
    """Return the enabled subscribers; an empty list if the settings name no catalogue."""
    if settings.events.catalogue is None:
        return []
    return [one for one in subscriptions_of(catalogue_of(settings), settings) if one.subscriber.is_enabled]
