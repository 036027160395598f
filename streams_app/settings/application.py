"""The settings of an application: all sections of ``streams.toml``, and the checks that concern several of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator, model_validator

from streams_app.envelopes import REGISTERED
from streams_app.errors import ConfigurationError
from streams_app.fold import Fold
from streams_app.formatting import suggestion
from streams_app.settings.base import Section
from streams_app.settings.console import ConsoleSettings
from streams_app.settings.journals import JournalSettings, faults_of_journals
from streams_app.settings.live import LiveServer, LiveView, faults_of_views
from streams_app.settings.loading import load
from streams_app.settings.read_stores import ReadStoreSettings, faults_of
from streams_app.settings.redis import RedisSettings
from streams_app.settings.schema_registry import SchemaRegistrySettings
from streams_app.settings.sections import NOTHING_DECLARED, HttpSettings, KafkaSettings, Limits, TracingSettings, WorkerSettings
from streams_app.settings.subscribers import EventsSettings, SubscriberSettings


class Settings(Section):
    """All settings of an application: of workers, commands, the live view server and publishers."""

    app_id: Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,64}$")]
    """Consumer group and prefix of Redis keys; one per application."""
    kafka: KafkaSettings = KafkaSettings()
    redis: RedisSettings = RedisSettings()
    http: HttpSettings = HttpSettings()
    worker: WorkerSettings = WorkerSettings()
    limits: Limits = Limits()
    tracing: TracingSettings = TracingSettings()
    schema_registry: SchemaRegistrySettings = SchemaRegistrySettings()
    folds: tuple[Fold, ...] = ()
    read_stores: tuple[ReadStoreSettings, ...] = ()
    events: EventsSettings = EventsSettings()
    subscribers: tuple[SubscriberSettings, ...] = ()
    live: tuple[LiveView, ...] = ()
    live_server: LiveServer = LiveServer()
    journals: tuple[JournalSettings, ...] = ()
    console: ConsoleSettings = ConsoleSettings()

    @field_validator("read_stores")
    @classmethod
    def _default_topics_of_stores(
        cls, stores: tuple[ReadStoreSettings, ...], known: ValidationInfo
    ) -> tuple[ReadStoreSettings, ...]:
        """Set the default dead-letter topic for read stores that do not name one."""
        app_id = known.data.get("app_id")
        return tuple(
            store if store.dead_letters else store.model_copy(update={"dead_letters": f"{app_id}.{store.group}.dead"})
            for store in stores
        )

    @field_validator("live")
    @classmethod
    def _default_topics_of_views(cls, views: tuple[LiveView, ...], known: ValidationInfo) -> tuple[LiveView, ...]:
        """Set the default dead-letter topic, which is the same for all live views that do not name one."""
        app_id = known.data.get("app_id")
        return tuple(
            view if view.dead_letters or not view.is_of_topic else view.model_copy(update={"dead_letters": f"{app_id}.live.dead"})
            for view in views
        )

    @model_validator(mode="after")
    def _check(self) -> Settings:
        faults = []
        if not self.folds and self.events.catalogue is None and not self.live and not self.journals:
            faults.append(NOTHING_DECLARED)
        names = [fold.name for fold in self.folds]
        outputs = [fold.output for fold in self.folds]
        if len(set(names)) != len(names):
            faults.append("two folds have the same name")
        if len(set(outputs)) != len(outputs):
            faults.append("two folds have the same output topic")
        if self.schema_registry.url is None:
            formats = [(f"fold {fold.name!r}", fold.format) for fold in self.folds]
            formats += [(f"live view {view.name!r}", view.format) for view in self.live]
            formats += [(f"journal {journal.name!r}", journal.format) for journal in self.journals]
            faults += [f'{who}: format = "{one}" needs schema_registry.url' for who, one in formats if one in REGISTERED]
        if clash := set(outputs) & set(self.sources):
            faults.append(f"{sorted(clash)} is both an output and a source")
        dead_letter_topics = {fold.dead_letters for fold in self.folds} | {store.dead_letters for store in self.read_stores}
        faults += faults_of_views(self.live, self.live_server, dead_letter_topics)
        dead_letter_topics |= {view.dead_letters for view in self.live_of_topics}
        if clash := dead_letter_topics & (set(outputs) | set(self.sources)):
            faults.append(f"{sorted(clash)} is both a dead-letter topic and a source or an output")
        faults += faults_of(self.read_stores, self.folds)
        faults += faults_of_journals(self.journals)
        if self.subscribers and self.events.catalogue is None:
            faults.append("subscribers are declared in a catalogue: name it as events.catalogue")
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @property
    def sources(self) -> tuple[str, ...]:
        """Source topics of all folds, without duplicates, in the order of the folds."""
        return tuple(dict.fromkeys(fold.source for fold in self.folds))

    @property
    def live_of_topics(self) -> tuple[LiveView, ...]:
        """Live views for which a worker reads a topic: all except presence."""
        return tuple(view for view in self.live if view.is_of_topic)

    def live_view(self, name: str) -> LiveView:
        """Return the live view with a name.

        Raises:
            ConfigurationError: No view has this name.
        """
        for view in self.live:
            if view.name == name:
                return view
        names = [view.name for view in self.live]
        there = ", ".join(names) or "none"
        raise ConfigurationError([f"there is no live view {name!r}{suggestion(name, names)} (there are: {there})"])

    def journal(self, name: str | None) -> JournalSettings:
        """Return the journal with a name; if the name is None, the only journal.

        Raises:
            ConfigurationError: No journal has this name, there is no journal, or there are several and no name was given.
        """
        names = [journal.name for journal in self.journals]
        if not names:
            raise ConfigurationError(["there is no journal in the settings; declare one as a table [journals.NAME]"])
        if name is None and len(names) > 1:
            raise ConfigurationError([f"there are several journals: name one with --journal: {', '.join(names)}"])
        for journal in self.journals:
            if name in (None, journal.name):
                return journal
        assert name is not None  # without a name, the only one was returned above
        raise ConfigurationError([f"there is no journal {name!r}{suggestion(name, names)} (there are: {', '.join(names)})"])

    def fold(self, name: str) -> Fold:
        """Return the fold with a name.

        Raises:
            ConfigurationError: No fold has this name.
        """
        for fold in self.folds:
            if fold.name == name:
                return fold
        names = [fold.name for fold in self.folds]
        raise ConfigurationError([f"there is no fold {name!r}{suggestion(name, names)} (there are: {', '.join(names)})"])

    def read_store(self, name: str | None) -> ReadStoreSettings:
        """Return the read store with a name; if the name is None, the only read store.

        Raises:
            ConfigurationError: No read store has this name, there is no read store, or there are several and no name was given.
        """
        names = [store.name for store in self.read_stores]
        if not names:
            raise ConfigurationError(["there is no read store in the settings; declare one as a table [read_stores.NAME]"])
        if name is None and len(names) > 1:
            raise ConfigurationError([f"there are several read stores: name one with --store: {', '.join(names)}"])
        for store in self.read_stores:
            if name in (None, store.name):
                return store
        assert name is not None  # without a name, the only one was returned above
        raise ConfigurationError([f"there is no read store {name!r}{suggestion(name, names)} (there are: {', '.join(names)})"])

    @classmethod
    def load(cls, path: Path | None, environ: Mapping[str, str]) -> Settings:
        """Load settings from the file, overridden by the environment.

        Args:
            path: The file. None: the file that ``STREAMS_APP_CONFIG`` names, or ``./streams.toml`` if this variable is not set. If
                ``./streams.toml`` does not exist then, the settings consist of the environment.
            environ: Environment variables. ``STREAMS_APP_<SECTION>_<KEY>`` overrides a setting; a ``-`` in a name is written as
                ``_``.

        Raises:
            ConfigurationError: The settings have faults, and the error lists all of them; or the file cannot be read; or there is
                neither a file nor a setting in the environment.
        """
        return load(cls, path, environ)
