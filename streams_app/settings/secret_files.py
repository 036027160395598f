"""Reads secrets, such as passwords, from the files that settings name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from streams_app.errors import ConfigurationError
from streams_app.text_files import read_text

MAX_SECRET_BYTES: Final = 65_536


def read_secret(label: str, path: Path | None) -> str | None:
    """Read a secret from a file, without surrounding white space; None if ``path`` is None.

    Raises:
        ConfigurationError: The file cannot be read, is too large or empty; a fault begins with ``label``, the setting.
    """
    if path is None:
        return None
    try:
        text = read_text(path, MAX_SECRET_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError([f"{label}: cannot read {path}: {error}"]) from error
    if not text:
        raise ConfigurationError([f"{label}: {path} is empty"])
    return text
