"""``[redis]``: the URL of Redis, and passwords. The form of the URL is checked; passwords are read from files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import Field, field_validator, model_validator

from streams_app.settings.base import Section, redacted
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

NODE: Final = re.compile(r"([\w.-]*|\[[0-9a-fA-F:.]+\])(?::(\d*))?")
LAST_PORT: Final = 65_535
REDIS_PORT: Final = 6379
SENTINEL_PORT: Final = 26379
LOCALHOST: Final = "localhost"

_DATABASE: Final = re.compile(r"(/\d*)?")
_SERVICE: Final = re.compile(r"/([^/]+)(?:/(\d*))?")


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
        parts = urlsplit(url)
        form = REDIS_SCHEMES.get(parts.scheme)
        if form is None:
            schemes = ", ".join(f"{scheme}://" for scheme in REDIS_SCHEMES)
            raise ValueError(f"must begin with one of {schemes}; those that begin with rediss use TLS")
        if parts.scheme != "unix" and (fault := _fault(parts, form)) is not None:
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
        return urlsplit(self.url).scheme.endswith("+sentinel")

    @property
    def nodes(self) -> tuple[tuple[str, int], ...]:
        """Host and port of each server in ``url``: Redis itself, the Sentinels, or nodes of a cluster; empty for ``unix://``."""
        parts = urlsplit(self.url)
        if parts.scheme == "unix":
            return ()
        port = SENTINEL_PORT if self.has_sentinels else REDIS_PORT
        found = [NODE.fullmatch(node) for node in _hosts(parts).split(",")]
        return tuple((node[1].strip("[]") or LOCALHOST, int(node[2] or port)) for node in found if node is not None)

    @property
    def service(self) -> tuple[str, int]:
        """Name of the service by which the Sentinels find the primary, and number of the database in Redis.

        Raises:
            ValueError: The URL names no Sentinels.
        """
        found = _SERVICE.fullmatch(urlsplit(self.url).path) if self.has_sentinels else None
        if found is None:
            raise ValueError("redis.url names no Sentinels")
        return unquote(found[1]), int(found[2] or 0)

    @property
    def redacted_url(self) -> str:
        """URL without user and password, for logs."""
        return redacted(self.url)


def _hosts(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]


def _fault(parts: SplitResult, form: str) -> str | None:
    """Return what is wrong with a URL, or None if it is valid.

    The text does not contain the URL, because a part of the password may have been parsed as the port or the database.
    """
    _, _, kind = parts.scheme.partition("+")
    nodes = _hosts(parts).split(",")
    if len(nodes) > 1 and not kind:
        return (
            "takes several servers, with commas, only for a Redis Cluster (redis+cluster:// or rediss+cluster://) "
            "or for Sentinels (redis+sentinel:// or rediss+sentinel://)"
        )
    path = _SERVICE if kind == "sentinel" else _DATABASE
    if not all(map(_is_node, nodes)) or (len(nodes) > 1 and not all(nodes)) or not path.fullmatch(parts.path):
        return f"is not {form}; characters like / # ? @ , in a password are written as %2F %23 %3F %40 %2C"
    if parts.query or parts.fragment:
        return "takes no options behind the database (what follows ? or #)"
    if kind == "cluster" and parts.path.strip("/0"):
        return "a Redis Cluster has only database 0"
    return None


def _is_node(text: str) -> bool:
    """Return whether a text has the form HOST:PORT. The host, the port or both may be missing."""
    found = NODE.fullmatch(text)
    return found is not None and (found[2] is None or 0 < int(found[2] or 0) <= LAST_PORT)
