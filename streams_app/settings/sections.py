"""The sections of ``streams.toml`` as frozen models, which define the types, defaults and limits of the settings.

Secrets are read from files when they are used, and no ``repr`` shows them.
"""

from __future__ import annotations

import re
import shlex
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator, model_validator

from streams_app.formatting import Duration, milliseconds
from streams_app.native import NativeChoice
from streams_app.settings.base import LAST_PORT, Section
from streams_app.settings.secret_files import read_secret

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
    sasl_oauth_extensions: dict[str, str] = Field(default={}, repr=False)
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
    flush_token_file: Path | None = None
    """File with the bearer token of ``POST /groups/flush``, by which other services emit a group; none: no such page."""
    flush_per_second: Annotated[int, Field(ge=1, le=10_000)] = 100
    """How many requests a worker accepts at ``POST /groups/flush``; others are answered by 429."""

    @property
    def names_port(self) -> bool:
        """Whether the file or the environment sets a port, which a scraper of metrics may know."""
        return self.port != 0 and "port" in self.model_fields_set

    @property
    def token(self) -> str | None:
        """Bearer token, read from ``token_file`` at each use; None if no file is set."""
        return read_secret("http.token_file", self.token_file)

    @property
    def flush_token(self) -> str | None:
        """Bearer token of ``POST /groups/flush``, read from ``flush_token_file``; None if no file is set."""
        return read_secret("http.flush_token_file", self.flush_token_file)


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

    native: NativeChoice = "auto"
    """Whether the native core reads and aggregates the events of folds of names in JSON, and packs the records of all folds:
    ``auto`` if it is installed (extra ``native``), ``off`` or ``require``, with which a worker does not start without it. Records
    are the same."""

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
