"""``[redis]``: the URL of Redis, and passwords. The form of the URL is checked; passwords are read from files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from pydantic import Field, field_validator, model_validator

from streams_app.settings.base import Section, UrlParts, redacted
from streams_app.settings.secret_files import read_secret

REDIS_SCHEMES: Final = {
    "redis": "HOST:PORT/DATABASE",
    "rediss": "HOST:PORT/DATABASE",
    "redis+sentinel": "HOST:PORT,HOST:PORT,HOST:PORT/SERVICE/DATABASE",
    "rediss+sentinel": "HOST:PORT,HOST:PORT,HOST:PORT/SERVICE/DATABASE",
    "redis+cluster": "HOST:PORT,HOST:PORT",
    "rediss+cluster": "HOST:PORT,HOST:PORT",
    "unix": "/PATH",
}
"""The schemes that ``redis.url`` may have, each with the form of the URL after ``://`` and the credentials."""

REDIS_PORT: Final = 6379
SENTINEL_PORT: Final = 26379
LOCALHOST: Final = "localhost"

_NAME: Final = re.compile(r"[\w.:-]*")
_DATABASE: Final = re.compile(r"(?:/([0-9]{0,9}))?")
_SERVICE: Final = re.compile(r"/([^/]+)(?:/([0-9]{0,9}))?")


class RedisSettings(Section):
    """``[redis]``: the server that stores open groups and other state."""

    url: str = Field("redis://localhost:6379/0", repr=False)
    """``redis://HOST:PORT/DATABASE``; ``rediss://`` for TLS, ``redis+sentinel://HOST:PORT,HOST:PORT,HOST:PORT/SERVICE/DATABASE``
    (``rediss+sentinel://``) for the primary that Sentinels name, ``redis+cluster://HOST:PORT,HOST:PORT`` (``rediss+cluster://``)
    for some nodes of a Redis Cluster, ``unix://``."""
    password_file: Path | None = None
    """File with the password."""
    sentinel_username: str | None = None
    """User at the Sentinels; none: only the password is sent. User and password of the URL are those of Redis."""
    sentinel_password_file: Path | None = None
    """File with the password of the Sentinels."""
    ssl_cafile: Path | None = None
    """Trusted certificate authority; requires ``rediss://``."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        scheme = url.partition("://")[0].lower()
        form = REDIS_SCHEMES.get(scheme)
        if form is None:
            schemes = ", ".join(f"{scheme}://" for scheme in REDIS_SCHEMES)
            raise ValueError(f"must begin with one of {schemes}; those that begin with rediss use TLS")
        if scheme != "unix" and (fault := _fault(url, form)) is not None:
            raise ValueError(fault)
        return url

    @model_validator(mode="after")
    def _check(self) -> RedisSettings:
        if self.ssl_cafile and not self.url.startswith("rediss"):
            raise ValueError("ssl_cafile needs a url that begins with rediss:// (TLS)")
        if (self.sentinel_username or self.sentinel_password_file) and not self.has_sentinels:
            raise ValueError("sentinel_username and sentinel_password_file need a url that begins with redis+sentinel://")
        if self.sentinel_username and not self.sentinel_password_file:
            raise ValueError("sentinel_username needs sentinel_password_file")
        return self

    @property
    def password(self) -> str | None:
        """Password, read from ``password_file`` at each use; None if no file is set."""
        return read_secret("redis.password_file", self.password_file)

    @property
    def sentinel_password(self) -> str | None:
        """Password of the Sentinels, read from ``sentinel_password_file`` at each use; None if no file is set."""
        return read_secret("redis.sentinel_password_file", self.sentinel_password_file)

    @property
    def has_sentinels(self) -> bool:
        """Whether Sentinels are queried for the address of the primary."""
        return self.parts.scheme.endswith("+sentinel")

    @property
    def parts(self) -> UrlParts:
        return UrlParts.of(self.url)

    @property
    def nodes(self) -> tuple[tuple[str, int], ...]:
        """Host and port of each server in ``url``: Redis itself, the Sentinels, or nodes of a cluster; empty for ``unix://``."""
        parts = self.parts
        if parts.scheme == "unix":
            return ()
        default = SENTINEL_PORT if self.has_sentinels else REDIS_PORT
        return tuple((host or LOCALHOST, port or default) for host, port in parts.hosts)

    @property
    def database(self) -> int:
        """Number of the database of a single server."""
        found = _DATABASE.fullmatch(self.parts.path)
        return int(found[1] or 0) if found is not None else 0

    @property
    def service(self) -> tuple[str, int]:
        """Name of the service by which the Sentinels find the primary, and number of the database; ValueError without Sentinels."""
        found = _SERVICE.fullmatch(self.parts.path) if self.has_sentinels else None
        if found is None:
            raise ValueError("redis.url names no Sentinels")
        return unquote(found[1]), int(found[2] or 0)

    @property
    def redacted_url(self) -> str:
        """URL without user and password, for logs."""
        return redacted(self.url)


def _fault(url: str, form: str) -> str | None:
    """Return what is wrong with a URL, or None if it is valid.

    The text does not contain the URL, because a part of the password may have been parsed as the port or the database.
    """
    misread = f"is not {form}; characters like / # ? @ , in a password are written as %2F %23 %3F %40 %2C"
    try:
        parts = UrlParts.of(url)
    except ValueError:
        return misread
    _, _, kind = parts.scheme.partition("+")
    if len(parts.hosts) > 1 and not kind:
        return (
            "takes several servers, with commas, only for a Redis Cluster (redis+cluster:// or rediss+cluster://) "
            "or for Sentinels (redis+sentinel:// or rediss+sentinel://)"
        )
    path = _SERVICE if kind == "sentinel" else _DATABASE
    are_hosts = all(_NAME.fullmatch(host) for host, _ in parts.hosts)
    if not are_hosts or (len(parts.hosts) > 1 and ("", None) in parts.hosts) or not path.fullmatch(parts.path):
        return misread
    if parts.query or parts.fragment:
        return "takes no options behind the database (what follows ? or #)"
    if kind == "cluster" and parts.path.strip("/0"):
        return "a Redis Cluster has only database 0"
    return None
