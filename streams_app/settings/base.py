"""Base class of all sections of ``streams.toml``, and functions for the credentials in URLs.

Rules that concern several sections, for example that no topic has two uses, are in ``Settings`` of ``sections.py``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Final
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of the sections of ``streams.toml``: immutable models that reject unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


LAST_PORT: Final = 65_535

_URL: Final = re.compile(r"([A-Za-z][\w.+-]*)://(?:([^/?#]*)@)?([^/?#@]*)([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.ASCII)
_SERVER: Final = re.compile(r"(\[[^][]*\]|[^][:,/\s]*)(?::([0-9]{0,5}))?")


@dataclass(frozen=True, slots=True)
class UrlParts:
    """The parts of a URL that may name several servers, as in ``scheme://user:password@a:1,[::1]:2/path``.

    ``urllib.parse.urlsplit`` accepts only a single server: since a security fix, which distributions also apply to older versions
    of Python, it rejects IPv6 addresses among several hosts.

    Attributes:
        scheme: In lower case.
        username: Decoded; None if there is none.
        password: Decoded; None if there is none.
        hosts: Host and port of each server, as written but without brackets; a missing host is "", a missing port None.
        path: Still encoded.
    """

    scheme: str
    username: str | None
    password: str | None
    hosts: Sequence[tuple[str, int | None]]
    path: str
    query: str = ""
    fragment: str = ""

    @classmethod
    def of(cls, url: str) -> UrlParts:
        """Split a URL.

        Raises:
            ValueError: It is not a URL, or a host or port is invalid. The message does not contain the URL, because a part of the
                password may be in the position of the port.
        """
        found = _URL.fullmatch(url)
        if found is None:
            raise ValueError("is not SCHEME://HOST:PORT")
        scheme, credentials, hosts, path, query, fragment = found.groups(default="")
        username, _, password = credentials.partition(":")
        return cls(
            scheme.lower(), unquote(username) or None, unquote(password) or None, tuple(map(_server_of, hosts.split(","))),
            path, query, fragment,
        )  # fmt: skip


def _server_of(text: str) -> tuple[str, int | None]:
    found = _SERVER.fullmatch(text)
    if found is None:
        raise ValueError("names a server that is not HOST:PORT or [IPV6]:PORT")
    host, port = found[1].strip("[]"), int(found[2]) if found[2] else None
    if found[1].startswith("[") and not _is_ipv6(unquote(host)):
        raise ValueError("names a server that is not HOST:PORT or [IPV6]:PORT")
    if port is not None and not 0 < port <= LAST_PORT:
        raise ValueError(f"names a port that is not between 1 and {LAST_PORT}")
    return host, port


def _is_ipv6(host: str) -> bool:
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True


SECRET: Final = re.compile("pass|secret|token", re.IGNORECASE)


def redacted(url: str) -> str:
    """Return a URL without its credentials, including those in its query."""
    address, has_query, query = url.partition("?")
    scheme, is_url, location = address.partition("://")
    if not location.startswith("/"):  # a file path may contain an @, and has no credentials
        location = location.rpartition("@")[2]  # the last @: passwords may contain an unescaped / or @
    shown = "&".join(map(_without_secret, query.split("&")))
    return f"{scheme}{is_url}{location}{has_query}{shown}"


def has_late_at(url: str) -> bool:
    """Return whether the path of a URL contains an ``@``.

    The probable cause is a password with an unescaped ``/``: parsers of URLs take this ``/`` for the end of the host.
    """
    _, _, path = url.partition("://")[2].partition("/")
    return "@" in path


def _without_secret(parameter: str) -> str:
    name, is_given, _ = parameter.partition("=")
    return f"{name}=***" if is_given and SECRET.search(unquote(name)) else parameter
