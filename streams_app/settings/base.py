"""Base of all sections of ``streams.toml``: frozen models, secrets in files, suggestions for misspelled names.

Rules across sections, such as topics with two uses, are in ``Settings`` of ``sections.py``.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict

from streams_app.errors import ConfigurationError


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

    If so, the password probably contains an unescaped ``/``, which was parsed as the end of the host.
    """
    _, _, path = url.partition("://")[2].partition("/")
    return "@" in path


def _without_secret(parameter: str) -> str:
    name, is_given, _ = parameter.partition("=")
    return f"{name}=***" if is_given and SECRET.search(unquote(name)) else parameter


def secret(label: str, path: Path | None) -> str | None:
    """Read a secret from a file, without surrounding white space; None if ``path`` is None.

    Args:
        label: Name of the setting, for messages.
        path: The file.

    Raises:
        ConfigurationError: The file cannot be read or is empty.
    """
    if path is None:
        return None
    try:
        text = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError([f"{label}: cannot read {path}: {error}"]) from error
    if not text:
        raise ConfigurationError([f"{label}: {path} is empty"])
    return text


def suggestion(name: str, known: list[str]) -> str:
    """Return a suggestion of a similar name for an error message; an empty string if no name is similar."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f", did you mean {near[0]!r}?" if near else ""
