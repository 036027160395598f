"""Selects the components that a worker runs besides folds, by the names of ``streams-app worker --only``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from streams_app.errors import ConfigurationError
from streams_app.formatting import suggestion
from streams_app.settings import JournalSettings, LiveView, ReadStoreSettings, Settings
from streams_app.subscribers.declaration.loading import catalogue_of
from streams_app.subscribers.declaration.subscription import subscriptions_of


class Selection(NamedTuple):
    """The components that a worker runs besides folds.

    Attributes:
        subscribers: Names of subscribers. None: all enabled subscribers of the catalogue, or none without a catalogue.
    """

    stores: Sequence[ReadStoreSettings]
    subscribers: Collection[str] | None = None
    views: Sequence[LiveView] = ()
    journals: Sequence[JournalSettings] = ()

    @property
    def names(self) -> list[str]:
        """Names of the selected components, for the log. If ``subscribers`` is None, the names of subscribers are missing."""
        stores, views = (store.name for store in self.stores), (view.name for view in self.views)
        return [*stores, *(self.subscribers or ()), *views, *(journal.name for journal in self.journals)]

    @property
    def uses_redis(self) -> bool:
        """Whether a selected component has state in Redis. If ``subscribers`` is None, folds run as well, which use it anyway."""
        return bool(self.subscribers or self.views or self.journals)


def everything(settings: Settings) -> Selection:
    """Select all read stores, enabled subscribers, live views of topics and journals, for a worker with folds."""
    return Selection(settings.read_stores, None, settings.live_of_topics, settings.journals)


def select(settings: Settings, names: Collection[str]) -> Selection:
    """Select the components of a worker without folds: the read stores, subscribers, live views and journals with these names.

    If ``names`` is empty, select all enabled subscribers, all live views of topics and all journals, but no read store.

    Raises:
        ConfigurationError: A name is unknown, a subscriber is not enabled, or no component is selected.
    """
    enabled: dict[str, bool] = {}
    if settings.events.catalogue is not None:
        found = [one.subscriber for one in subscriptions_of(catalogue_of(settings), settings)]
        enabled = {one.name: one.is_enabled for one in found}
    stores = {store.name: store for store in settings.read_stores}
    views = {view.name: view for view in settings.live_of_topics}
    journals = {journal.name: journal for journal in settings.journals}
    declared = list(dict.fromkeys([*stores, *enabled, *views, *journals]))
    folds, there = {fold.name for fold in settings.folds}, ", ".join(declared) or "none"
    faults = [
        f"there is no read store, subscriber, live view or journal {name!r}{_hint(name, declared, folds)} (there are: {there})"
        for name in names
        if name not in declared
    ]
    if faults and settings.events.catalogue is None:
        faults.append("subscribers are declared in a catalogue, and events.catalogue is not set")
    others = {*stores, *views, *journals}
    faults += [f"subscriber {name!r} is not enabled" for name in names if name not in others and enabled.get(name) is False]
    if not names and not views and not journals and not any(enabled.values()):
        faults.append("there is nothing to run: no fold, no live view of a topic, no journal, and no subscriber that is enabled")
    if faults:
        raise ConfigurationError(faults)
    return Selection(
        [stores[name] for name in names if name in stores],
        [name for name in names or enabled if enabled.get(name)],
        [views[name] for name in names or views if name in views],
        [journals[name] for name in names or journals if name in journals],
    )


def _hint(name: str, declared: list[str], folds: Collection[str]) -> str:
    return ", but a fold: workers without --only run all folds" if name in folds else suggestion(name, declared)
