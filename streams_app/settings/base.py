"""Base class of all sections of ``streams.toml``, and functions for the credentials in URLs.

Rules that concern several sections, for example that no topic has two uses, are in ``Settings`` of ``sections.py``.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of the sections of ``streams.toml``: immutable models that reject unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


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
