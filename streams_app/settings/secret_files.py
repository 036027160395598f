"""Reads secrets, such as passwords, from the files that settings name."""

from __future__ import annotations

from pathlib import Path

from streams_app.errors import ConfigurationError


def read_secret(label: str, path: Path | None) -> str | None:
    """Read a secret from a file, without surrounding white space; None if ``path`` is None.

    Raises:
        ConfigurationError: The file cannot be read or is empty; the fault begins with ``label``, the name of the setting.
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
