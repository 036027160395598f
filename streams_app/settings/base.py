"""What all sections of ``streams.toml`` share: frozen models, secrets in files, near names."""

from __future__ import annotations

import difflib
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict

from streams_app.errors import ConfigurationError


class Section(BaseModel):
    """A frozen section; unknown keys are faults."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def redacted(url: str) -> str:
    """A URL without its credentials."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rsplit("@", 1)[1]))


def secret(label: str, path: Path | None) -> str | None:
    """What stands in a file, without the space around it; None: there is no file.

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
    """A near name to put behind a complaint, or nothing."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f", did you mean {near[0]!r}?" if near else ""
