"""``[schema_registry]``: connection to the schema registry, which stores the schemas of framed events."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from streams_app.formatting import Duration
from streams_app.settings.base import Section, UrlParts, redacted
from streams_app.settings.secret_files import read_secret


class SchemaRegistrySettings(Section):
    """``[schema_registry]``: a registry with the REST interface of Confluent, which Karapace and Apicurio also provide."""

    url: str | None = Field(None, repr=False)
    """``https://HOST:PORT``, and the path of the interface, if any (Apicurio: ``/apis/ccompat/v7``); needed for the formats
    ``avro``, ``protobuf`` and ``json-schema``."""
    username: str | None = None
    """User for HTTP basic authentication; none: no authentication."""
    password_file: Path | None = None
    """File with the password; needed with ``username``."""
    ssl_cafile: Path | None = None
    """Trusted certificate authority of an ``https`` URL; none: those of the system."""
    timeout: Duration = timedelta(seconds=10)
    """How long a request may take before it is retried; 100ms to 10m."""
    cache_size: Annotated[int, Field(ge=10, le=100_000)] = 1_000
    """Maximum number of schemas in memory."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        form = "is not http://HOST:PORT or https://HOST:PORT, with a path or without"
        try:
            parts = UrlParts.of(url)
        except ValueError:
            raise ValueError(form) from None
        (host, _), *others = parts.hosts
        if parts.scheme not in ("http", "https") or not host or others or parts.query or parts.fragment:
            raise ValueError(form)
        if parts.username or parts.password:
            raise ValueError("takes no user and password: set username and password_file")
        return url

    @model_validator(mode="after")
    def _check(self) -> SchemaRegistrySettings:
        if (self.username is None) != (self.password_file is None):
            raise ValueError("username and password_file must be set together")
        if not timedelta(milliseconds=100) <= self.timeout <= timedelta(minutes=10):
            raise ValueError("timeout must be between 100ms and 10m")
        return self

    @property
    def password(self) -> str | None:
        """Password, read from ``password_file`` at each use; None if no file is set."""
        return read_secret("schema_registry.password_file", self.password_file)

    @property
    def redacted_url(self) -> str:
        """URL without credentials, for logs; empty if no URL is set."""
        return redacted(self.url or "")
