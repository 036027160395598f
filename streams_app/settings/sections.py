"""The sections of ``streams.toml`` as frozen models, which define the types, defaults and limits of the settings.

Secrets are read from files when they are used, and no ``repr`` shows them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from streams_app.envelopes import REGISTERED
from streams_app.errors import ConfigurationError
from streams_app.fold import Fold
from streams_app.formatting import Duration, milliseconds, suggestion
from streams_app.settings.base import LAST_PORT, Section
from streams_app.settings.journals import JournalSettings, faults_of_journals
from streams_app.settings.live import LiveServer, LiveView, faults_of_views
from streams_app.settings.read_stores import ReadStoreSettings, faults_of
from streams_app.settings.redis import RedisSettings
from streams_app.settings.schema_registry import SchemaRegistrySettings
from streams_app.settings.secret_files import read_secret
from streams_app.settings.subscribers import EventsSettings, SubscriberSettings

SERVER: Final = re.compile(r"([\w.-]+|\[[0-9a-fA-F:.]+\]):\d{1,5}")

NOTHING_DECLARED: Final = (
    "folds: declare at least one fold, as a table [folds.NAME], or a live view [live.NAME], or a journal [journals.NAME], "
    "or name a catalogue as events.catalogue"
)

Positive = Annotated[int, Field(ge=1)]


class KafkaSettings(Section):
    """``[kafka]``: connection to the brokers, and properties of topics that ``topics create`` creates."""

    bootstrap_servers: str = "localhost:9092"
    """``host:port``; several are separated by commas."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Protocol of the connections to brokers: ``PLAINTEXT``, ``SSL``, ``SASL_PLAINTEXT`` or ``SASL_SSL``."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = "SCRAM-SHA-512"
    """``SCRAM-SHA-512``, ``SCRAM-SHA-256``, ``PLAIN`` or ``OAUTHBEARER``."""
    sasl_username: str | None = None
    """Needed with SASL, except ``OAUTHBEARER``."""
    sasl_password_file: Path | None = None
    """File with the password; needed with SASL, except ``OAUTHBEARER``."""
    sasl_oauth_token_file: Path | None = None
    """``OAUTHBEARER``: file with the token, read at each new connection."""
    sasl_oauth_token_command: str | None = None
    """``OAUTHBEARER``: command, run without a shell, that prints the token or the JSON answer of an OAuth server."""
    sasl_oauth_token_provider: str | None = None
    """``OAUTHBEARER``: ``MODULE:NAME`` of a function that returns the token, or the token and its expiry in Unix milliseconds."""
    sasl_oauth_extensions: dict[str, str] = Field(default={})
    """``OAUTHBEARER``: SASL extensions to send, as ``{ logicalCluster = "lkc-1" }``."""
    ssl_cafile: Path | None = None
    """Trusted certificate authorities; none: those of the system."""
    ssl_certfile: Path | None = None
    """Client certificate."""
    ssl_keyfile: Path | None = None
    """Key of the client certificate."""
    session_timeout: Duration = timedelta(seconds=10)
    """A worker that sends no heartbeat for this long loses its partitions; 1s to 5m."""
    partitions: Annotated[int, Field(ge=1, le=8_000)] = 4
    """Number of partitions of topics that ``topics create`` creates."""
    replication_factor: Annotated[int, Field(ge=1, le=100)] = 1
    """Number of replicas of topics that ``topics create`` creates."""

    @field_validator("bootstrap_servers")
    @classmethod
    def _check_servers(cls, servers: str) -> str:
        for server in servers.split(","):
            if not SERVER.fullmatch(server.strip()) or int(server.rsplit(":", 1)[1]) > LAST_PORT:
                raise ValueError(f"{server.strip()!r} is not HOST:PORT")
        return servers

    @model_validator(mode="after")
    def _check(self) -> KafkaSettings:
        self._check_sasl()
        if not timedelta(seconds=1) <= self.session_timeout <= timedelta(minutes=5):
            raise ValueError("session_timeout must be between 1s and 5m")
        return self

    def _check_sasl(self) -> None:
        tokens = {
            "sasl_oauth_token_file": self.sasl_oauth_token_file,
            "sasl_oauth_token_command": self.sasl_oauth_token_command,
            "sasl_oauth_token_provider": self.sasl_oauth_token_provider,
        }
        given = [name for name, value in tokens.items() if value is not None]
        is_sasl = self.security_protocol.startswith("SASL_")
        if (given or self.sasl_oauth_extensions) and self.sasl_mechanism != "OAUTHBEARER":
            raise ValueError(f'{(*given, "sasl_oauth_extensions")[0]} needs sasl_mechanism = "OAUTHBEARER"')
        if is_sasl and self.sasl_mechanism == "OAUTHBEARER":
            if len(given) != 1:
                raise ValueError(f'sasl_mechanism = "OAUTHBEARER" needs one of {", ".join(tokens)}, not {len(given)}')
        elif is_sasl and not (self.sasl_username and self.sasl_password_file):
            raise ValueError(f"security_protocol = {self.security_protocol} needs sasl_username and sasl_password_file")

    @field_validator("sasl_oauth_token_command")
    @classmethod
    def _check_command(cls, command: str | None) -> str | None:
        try:
            words = shlex.split(command) if command is not None else None
        except ValueError as error:
            raise ValueError(f"is not a command: {error}") from error
        if words is not None and not words:
            raise ValueError("is empty")
        return command

    @field_validator("sasl_oauth_token_provider")
    @classmethod
    def _check_provider(cls, provider: str | None) -> str | None:
        if provider is not None and not all(provider.partition(":")):
            raise ValueError("is not MODULE:NAME")
        return provider

    @field_validator("sasl_oauth_extensions")
    @classmethod
    def _check_extensions(cls, extensions: dict[str, str]) -> dict[str, str]:
        for name, value in extensions.items():
            if not re.fullmatch("[A-Za-z]+", name) or name == "auth" or not re.fullmatch(r"[\x21-\x7e \t\r\n]+", value):
                raise ValueError(f"{name!r} is not an extension: a name is letters (and not auth), a value printable ASCII")
        return extensions

    @property
    def session_timeout_ms(self) -> int:
        """Time without a heartbeat after which a worker loses its partitions, in ms."""
        return milliseconds(self.session_timeout)

    @property
    def sasl_password(self) -> str | None:
        """Password, read from ``sasl_password_file`` at each use; None if no file is set."""
        return read_secret("kafka.sasl_password_file", self.sasl_password_file)


class HttpSettings(Section):
    """``[http]``: the HTTP server of a worker, which shows metrics, health and open groups."""

    host: str = "127.0.0.1"
    """Address on which metrics and health are served."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    """0: any free port. If a port that is set is in use, the worker ends with exit code 1. If none is set, the next free one is
    used and logged; also by ``live serve``."""
    token_file: Path | None = None
    """File with a bearer token, which is required on all pages except ``/health``."""

    @property
    def names_port(self) -> bool:
        """Whether the file or the environment sets a port, which a scraper of metrics may know."""
        return self.port != 0 and "port" in self.model_fields_set

    @property
    def token(self) -> str | None:
        """Bearer token, read from ``token_file`` at each use; None if no file is set."""
        return read_secret("http.token_file", self.token_file)


class WorkerSettings(Section):
    """``[worker]``: intervals of periodic work, and the time for a shutdown."""

    tick: Duration = timedelta(seconds=1)
    """How often due groups are emitted, one partition after the other; 10ms to 1m. The first group after a silence is emitted
    without waiting for the tick."""
    commit_every: Duration = timedelta(seconds=2)
    """How often low watermarks are committed; 10ms to 1m."""
    grace: Duration = timedelta(seconds=15)
    """How long running functions of subscribers may take to complete at shutdown; 0s to 5m. Set the kill timeout of the supervisor
    10 s higher."""

    @model_validator(mode="after")
    def _check(self) -> WorkerSettings:
        for name in ("tick", "commit_every"):
            if not timedelta(milliseconds=10) <= getattr(self, name) <= timedelta(minutes=1):
                raise ValueError(f"{name} must be between 10ms and 1m")
        if not timedelta(0) <= self.grace <= timedelta(minutes=5):
            raise ValueError("grace must be between 0s and 5m")
        return self

    @property
    def tick_ms(self) -> int:
        """Interval at which due groups are emitted, in ms."""
        return milliseconds(self.tick)

    @property
    def grace_seconds(self) -> float:
        """Time that running functions of subscribers have to complete at shutdown, in seconds."""
        return self.grace.total_seconds()

    @property
    def commit_every_ms(self) -> int:
        """Interval at which low watermarks are committed, in ms."""
        return milliseconds(self.commit_every)


class TracingSettings(Section):
    """``[tracing]``: whether work is recorded as spans of OpenTelemetry."""

    enabled: bool = False
    """Whether calls of subscribers, published events, folded records and batches of read stores have spans; needs the extra
    ``otel``."""


class Limits(Section):
    """``[limits]``: limits for events. An event that exceeds one of them becomes a dead letter.

    The size of a value is checked before the value is decoded.
    """

    value_bytes: Positive = 1_000_000
    """Maximum size of the value of an event in bytes; for subscribers, also of all its headers together."""
    key_bytes: Positive = 512
    """Maximum size of a group key in bytes."""
    names_per_event: Annotated[int, Field(ge=1, le=10_000)] = 256
    """Maximum number of changed names in one event."""
    name_bytes: Positive = 256
    """Maximum size of a changed name in bytes."""


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
        from streams_app.settings.loading import load  # imported late: that module imports this class

        return load(path, environ)
